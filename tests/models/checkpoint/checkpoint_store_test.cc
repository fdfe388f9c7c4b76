// Checkpoints on disk: written in one piece or not at all.

#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <optional>
#include <thread>
#include <vector>

#include <kolo/op.h>

#include "models/checkpoint/crc32c.h"
#include "tests/models/checkpoint/store_testing.h"

namespace kolo::models {
namespace {

using testing::BoundMlp;
using testing::error_of;
using testing::read_file;
using testing::TempFolder;
using testing::write_file;

/// The check values of RFC 3720, appendix B.4, and of Castagnoli's CRC in the catalogue of CRCs.
TEST(Crc32c, KnownValues) {
  EXPECT_EQ(crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43u);
  EXPECT_EQ(crc32c(""), 0u);
  const std::string text = "The quick brown fox jumps over the lazy dog";
  EXPECT_EQ(crc32c(text), 0x22620404u);
  for (std::size_t cut = 0; cut <= text.size(); ++cut) {
    EXPECT_EQ(crc32c(text.substr(cut), crc32c(text.substr(0, cut))), 0x22620404u) << cut;
  }
}

/// Training waits for it, so it is a copy and nothing else.
TEST_F(Store, ASecondSnapshotUsesTheMemoryOfTheFirst) {
  Snapshot now = snapshot();
  const auto memory = [&] {
    std::vector<const float*> all;
    for (const auto& piece : now.pieces()) all.push_back(piece.data());
    return all;
  };
  const auto before = memory();
  mlp_.values[3] = 17;
  now.copy(tensors(1), 0, mlp_.model, *optimizer_);
  EXPECT_EQ(memory(), before);
  EXPECT_EQ(now.pieces()[0][3], 17);
}

/// 12 bytes a parameter, shared out: no part has more than one number of each tensor above its share.
TEST_F(Store, PartsAreEven) {
  const std::size_t parameters = mlp_.values.size();
  for (std::size_t parts = 1; parts <= 4; ++parts) {
    std::size_t sum = 0;
    for (std::size_t part = 0; part < parts; ++part) {
      std::size_t numbers = 0;
      const Snapshot piece = snapshot(part, parts);
      for (const auto& tensor : piece.pieces()) numbers += tensor.size();
      EXPECT_LE(numbers, 3 * parameters / parts + tensors(parts).size());
      sum += numbers;
    }
    EXPECT_EQ(sum, 3 * parameters);
  }
}

/// The shards of ZeRO-1 are parts as they are.
TEST_F(Store, CutsAreThoseOfRanks) {
  for (const std::int64_t elements : {0, 1, 2, 3, 7, 8, 1'000'003}) {
    for (int ranks = 1; ranks <= 9; ++ranks) {
      const auto cuts = even_cuts(static_cast<std::uint64_t>(elements), static_cast<std::size_t>(ranks));
      for (int rank = 0; rank < ranks; ++rank) {
        const RowRange rows = rows_of_rank(elements, ranks, rank);
        EXPECT_EQ(cuts[static_cast<std::size_t>(rank)], static_cast<std::uint64_t>(rows.begin));
        EXPECT_EQ(cuts[static_cast<std::size_t>(rank) + 1], static_cast<std::uint64_t>(rows.end));
      }
    }
  }
}

TEST_F(Store, KeepsTheNewest) {
  EXPECT_TRUE(store_.list().empty());
  for (const std::int64_t step : {0, 5, 10, 15, 1'000'000'000}) write(step);
  EXPECT_EQ(steps(), (std::vector<std::int64_t>{1'000'000'000, 15, 10}));
  for (const auto& checkpoint : store_.list()) EXPECT_EQ(problem_of(checkpoint), std::nullopt);
  EXPECT_EQ(entries(), 3u) << "nothing else is left";
  write(15);
  EXPECT_EQ(steps(), (std::vector<std::int64_t>{1'000'000'000, 15, 10})) << "the same step again";
}

TEST_F(Store, KeepsTheBestBesideTheNewest) {
  EXPECT_FALSE(store_.best());
  write(1);
  EXPECT_FALSE(store_.best()) << "it says no loss";
  const std::vector<std::optional<HeldOut>> losses{
      HeldOut{3.5}, HeldOut{1.25}, {}, HeldOut{2.0}, HeldOut{1.25}, {}, {}, {}};
  for (std::size_t i = 0; i < losses.size(); ++i) write(static_cast<std::int64_t>(i) + 2, 2, losses[i]);
  EXPECT_EQ(steps(), (std::vector<std::int64_t>{9, 8, 7, 3}));
  ASSERT_TRUE(store_.best());
  EXPECT_EQ(store_.best()->checkpoint.step, 3) << "the earlier of two";
  EXPECT_EQ(store_.best()->held_out.loss, 1.25);
  write(10, 2, HeldOut{1.0});
  EXPECT_EQ(steps(), (std::vector<std::int64_t>{10, 9, 8}));
}

/// As when a step is evaluated once its checkpoint is complete.
TEST_F(Store, ALossThatIsNotedLaterCounts) {
  write(1, 2, HeldOut{3.5});
  for (const std::int64_t step : {2, 3, 4}) write(step);
  EXPECT_EQ(steps(), (std::vector<std::int64_t>{4, 3, 2, 1}));
  store_.note_held_out(4, {2.5, {}});
  EXPECT_EQ(store_.best()->checkpoint.step, 4);
  EXPECT_EQ(steps(), (std::vector<std::int64_t>{4, 3, 2})) << "the best before it is removed";
  for (const auto& checkpoint : store_.list()) EXPECT_EQ(problem_of(checkpoint), std::nullopt);
  EXPECT_NO_THROW(store_.note_held_out(5, {1, {}}));
  EXPECT_EQ(store_.best()->held_out.loss, 2.5);
}

/// A loss of fewer batches says nothing about one of more: the newest evaluation says what is compared.
TEST_F(Store, OnlyLossesOfTheSameExamplesCompare) {
  const EvaluatedOn some{.batches = 3, .ranks = 2, .examples = 8}, others{.batches = 3, .ranks = 1, .examples = 8};
  write(1, 2, HeldOut{1.0, some});
  for (const std::int64_t step : {2, 3, 4}) write(step, 2, HeldOut{2.0 + static_cast<double>(step), some});
  EXPECT_EQ(store_.best()->checkpoint.step, 1);
  EXPECT_EQ(store_.best()->held_out.of, some) << "as it was written";
  for (const EvaluatedOn& of : {others, EvaluatedOn{}}) {
    store_.note_held_out(4, {9, of});
    EXPECT_EQ(store_.best()->checkpoint.step, 4);
    EXPECT_EQ(store_.best()->held_out.of, of);
  }
  store_.note_held_out(3, {10, {}});
  EXPECT_EQ(store_.best()->checkpoint.step, 4);
  EXPECT_EQ(steps(), (std::vector<std::int64_t>{4, 3, 2})) << "what cannot be compared is not kept";
}

TEST_F(Store, AManifestSaysForWhomEvaluationsAreSettled) {
  for (const std::int64_t settled : {-1, 0, 1, 3}) {
    write(1, 2, HeldOut{1.0, {}, settled});
    EXPECT_EQ(store_.best()->held_out.settled_for, settled);
    EXPECT_EQ(read_file(store_.list().front().folder / "manifest.json").find("settled") != std::string::npos,
              settled >= 0);
  }
}

/// A link to itself stands for what a disk cannot read once; one to nothing, for a disk that is not mounted.
class UnreadablePath {
 public:
  explicit UnreadablePath(std::filesystem::path path, const std::string& target = "")
      : path_(std::move(path)), kept_(path_.string() + ".kept") {
    std::filesystem::rename(path_, kept_);
    std::filesystem::create_symlink(target.empty() ? path_.filename().string() : target, path_);
  }
  ~UnreadablePath() {
    std::error_code ignored;  // it may have been removed with its folder: the test says so
    std::filesystem::remove(path_, ignored);
    std::filesystem::rename(kept_, path_, ignored);
  }
  UnreadablePath(const UnreadablePath&) = delete;
  UnreadablePath& operator=(const UnreadablePath&) = delete;

 private:
  std::filesystem::path path_, kept_;
};

TEST_F(Store, OneWhoseManifestCannotBeReadMayBeTheBest) {
  write(1, 2, HeldOut{1.0});
  write(2, 2, HeldOut{2.0});
  const auto manifest = store_.list().back().folder / "manifest.json";
  {
    const UnreadablePath unreadable(manifest);
    for (const std::int64_t step : {3, 4, 5}) write(step);
    const std::string problem =
        "cannot read DIR/step-000000001/manifest.json (it is missing or not readable); check the path and its "
        "permissions";
    ASSERT_TRUE(store_.best());
    EXPECT_EQ(store_.best()->checkpoint.step, 2);
    EXPECT_EQ(error_of([&] { throw ModelError(store_.best()->doubt); }, store_.folder()), problem);
    const UnreadablePath another(store_.list()[3].folder / "manifest.json");
    EXPECT_NE(error_of([&] { (void)store_.best(); }, store_.folder()).find("-000000002/manifest.json"),
              std::string::npos)
        << "none of the others says a loss";
  }
  EXPECT_EQ(store_.best()->doubt, "");
  EXPECT_EQ(steps(), (std::vector<std::int64_t>{5, 4, 3, 2, 1}));
  EXPECT_EQ(store_.best()->checkpoint.step, 1);
  write(6);
  EXPECT_EQ(steps(), (std::vector<std::int64_t>{6, 5, 4, 1})) << "of two that say a loss it is the best";
  write_file(manifest, "damaged");
  EXPECT_FALSE(store_.best());
  write(7);
  EXPECT_EQ(steps(), (std::vector<std::int64_t>{7, 6, 5})) << "one that is damaged is not kept";
}

TEST_F(Store, OneWhoseFolderCannotBeReadMayBeTheBest) {
  write(1, 2, HeldOut{1.0});
  write(2, 2, HeldOut{2.0});
  for (const std::string target : {"", "not mounted"}) {
    SCOPED_TRACE(target);
    const UnreadablePath unreadable(store_.folder() / "step-000000001", target);
    EXPECT_FALSE(store_.lacks(1));
    for (const std::int64_t step : {3, 4, 5}) write(step);
    EXPECT_EQ(steps(), (std::vector<std::int64_t>{5, 4, 3, 2, 1}));
    ASSERT_TRUE(store_.best());
    EXPECT_EQ(store_.best()->checkpoint.step, 2);
    EXPECT_NE(store_.best()->doubt, "");
    EXPECT_EQ(store_.best()->doubtful_step, 1);
  }
  EXPECT_EQ(store_.best()->checkpoint.step, 1);
}

/// The newest loss says what is compared. Where that cannot be read the best of each kind stays.
TEST_F(Store, TheBestOfEachKindStaysInDoubt) {
  const EvaluatedOn some{.batches = 3, .ranks = 2, .examples = 8};
  write(1, 2, HeldOut{1.0, some});
  write(2, 2, HeldOut{2.0, {}});
  write(3, 2, HeldOut{3.0, some});
  {
    const UnreadablePath unreadable(store_.list().front().folder / "manifest.json");
    write(4, 2, HeldOut{4.0, {}});
    for (const std::int64_t step : {5, 6, 7}) write(step);
    EXPECT_EQ(steps(), (std::vector<std::int64_t>{7, 6, 5, 3, 2, 1}));
  }
  EXPECT_EQ(store_.best()->checkpoint.step, 1);
  write(8);
  EXPECT_EQ(steps(), (std::vector<std::int64_t>{8, 7, 6, 1}));
}

TEST_F(Store, WhatCannotBeReadIsNotMissing) {
  write(1, 2, HeldOut{1.0});
  EXPECT_FALSE(store_.lacks(1));
  EXPECT_TRUE(store_.lacks(2));
  {
    const UnreadablePath unreadable(store_.list().front().folder);
    EXPECT_FALSE(store_.lacks(1));
    EXPECT_THROW(store_.note_held_out(1, {2.0, {}}), ModelError) << "it is not noted";
  }
  for (const auto& path : {store_.folder(), store_.folder().parent_path()}) {
    const UnreadablePath unreadable(path);
    EXPECT_THROW(store_.list(), ModelError) << "it is not empty";
    EXPECT_FALSE(store_.lacks(1));
  }
  EXPECT_EQ(store_.best()->held_out.loss, 1.0);
}

TEST_F(Store, WhatIsHeldIsRemovedLater) {
  for (const std::int64_t step : {1, 2, 3}) write(step);
  {
    const CheckpointHold hold(store_.list().back()), another(store_.list().back());
    for (const std::int64_t step : {4, 5}) write(step);
    EXPECT_EQ(steps(), (std::vector<std::int64_t>{5, 4, 3, 1}));
  }
  write(6);
  EXPECT_EQ(steps(), (std::vector<std::int64_t>{6, 5, 4}));
}

/// Whatever the number of parts, and of readers.
TEST_F(Store, GivesBackWhatWasWritten) {
  train_a_step();
  for (std::size_t parts = 1; parts <= 5; ++parts) {
    write(1, parts);
    for (int readers = 1; readers <= 4; ++readers) {
      for (int reader = 0; reader < readers; ++reader) {
        BoundMlp other({5, 4, 7}, 2);
        std::vector<Shard> shards;
        for (const Parameter& parameter : other.model.parameters()) {
          const RowRange rows = rows_of_rank(parameter.shape.elements(), readers, reader);
          shards.push_back({static_cast<std::size_t>(rows.begin), static_cast<std::size_t>(rows.count()), true});
        }
        const auto fresh = make_optimizer({.name = "adamw"}, other.model.parameters(), shards);
        StoredParts stored = newest();
        stored.check_fit(other.model, *fresh);
        stored.read_values(other.model);
        EXPECT_EQ(other.values, mlp_.values);
        stored.read_state(*fresh, shards);
        const auto want = optimizer_->state(), got = fresh->state();
        for (std::size_t i = 0; i < want.size(); ++i) {
          const Shard& shard = shards[want[i].parameter];
          EXPECT_TRUE(std::ranges::equal(testing::floats_of(want[i].values).subspan(shard.first, shard.count),
                                         testing::floats_of(got[i].values)))
              << want[i].name << ", reader " << reader << " of " << readers << ", " << parts << " parts";
        }
      }
    }
  }
}

TEST_F(Store, SaysWhatDoesNotFit) {
  write(1);
  BoundMlp other({5, 4, 3});
  const auto sgd = make_optimizer({.name = "sgd"}, mlp_.model.parameters());
  const auto error = [&](Model& model, Optimizer& optimizer) {
    return error_of([&] { newest().check_fit(model, optimizer); }, store_.folder());
  };
  EXPECT_EQ(error(mlp_.model, *optimizer_), "no error");
  EXPECT_EQ(error(mlp_.model, *sgd),
            "DIR/step-000000001 has no 'velocity.layers.0.weight' of shape [4,5]; resume with the optimizer that wrote "
            "it");
  EXPECT_EQ(error(other.model, *optimizer_).substr(0, 90),
            "DIR/step-000000001 does not fit the model (wrong shape: 'layers.1.weight' is [7,4] instead");
}

TEST_F(Store, WhatIsUnusableIsSetAside) {
  write(4);
  write(8);
  EXPECT_EQ(store_.set_aside(store_.list().front(), "unusable"), "unusable-step-000000008");
  EXPECT_EQ(steps(), std::vector<std::int64_t>{4});
  EXPECT_TRUE(std::filesystem::exists(store_.folder() / "unusable-step-000000008/manifest.json"));
}

/// Whoever reads it finds it where it was until that is done.
TEST_F(Store, WhatIsHeldIsSetAsideLater) {
  write(4);
  const auto checkpoint = store_.list().front();
  std::optional<CheckpointHold> hold(checkpoint);
  bool was_there = false;
  std::jthread reader([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    was_there = std::filesystem::exists(checkpoint.folder);
    hold.reset();
  });
  EXPECT_EQ(store_.set_aside(checkpoint, "superseded"), "superseded-step-000000004");
  reader.join();
  EXPECT_TRUE(was_there);
}

/// As when two runs go on from one checkpoint, one after the other.
TEST_F(Store, WhatIsSetAsideStays) {
  const std::vector<std::string> names{"superseded-step-000000008", "superseded-step-000000008-2",
                                       "superseded-step-000000008-3"};
  std::vector<std::string> parts;
  for (const std::string& name : names) {
    mlp_.values[3] += 1;
    write(8);
    parts.push_back(read_file(store_.list().front().folder / file_of({0, 2})));
    EXPECT_EQ(store_.set_aside(store_.list().front(), "superseded"), name);
  }
  for (std::size_t i = 0; i < names.size(); ++i)
    EXPECT_EQ(read_file(store_.folder() / names[i] / file_of({0, 2})), parts[i]) << names[i];
  EXPECT_NE(parts[0], parts[1]);
  EXPECT_TRUE(steps().empty());
}

TEST_F(Store, LeftoversGo) {
  write(4);
  write_parts(8, 2);
  std::filesystem::create_directories(store_.folder() / ".removing-step-000000001");
  EXPECT_EQ(steps(), std::vector<std::int64_t>{4});
  store_.remove_leftovers();
  EXPECT_EQ(entries(), 1u);
}

/// A part that its writer says is on disk may be missing: on a file system of another node.
TEST_F(Store, ACheckpointThatLacksAPartIsNotCompleted) {
  write(4);
  for (const bool gone : {true, false}) {
    const Manifest manifest = write_parts(8, 2);
    const auto part = store_.unfinished(8) / file_of({1, 2});
    gone ? (void)std::filesystem::remove(part) : write_file(part, "short");
    EXPECT_EQ(error_of([&] { store_.commit(manifest); }, store_.folder()),
              fmt::format("DIR does not have what rank 1 has written there (part-00001-of-00002.safetensors{}); name a "
                          "folder on a file system that all ranks share",
                          gone ? ": No such file or directory"
                               : fmt::format(" has 5 bytes instead of {}", manifest.parts[1].bytes)));
    EXPECT_EQ(steps(), std::vector<std::int64_t>{4});
    EXPECT_EQ(entries(), 1u);
  }
}

/// What a run that was killed is still writing is not taken for that of another.
TEST_F(Store, RunsDoNotMix) {
  const CheckpointStore other(store_.folder(), 3, "other");
  const Manifest manifest = write_parts(8, 2);
  mlp_.values[3] = 17;
  other.write_part(8, tensors(2), {0, 2}, snapshot(0, 2));
  store_.commit(manifest);
  EXPECT_EQ(problem_of(store_.list().front()), std::nullopt);
}

/// A file size limit stands for a disk that is full: it stops a write in the middle.
TEST_F(Store, AFullDiskHarmsNothing) {
  write(4);
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  for (const rlim_t room : {0, 40, 300, 1300}) {  // within a part, and of many parts within the manifest
    const rlimit tight{room, before.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &tight), 0);
    const std::string error = error_of([&] { write(8, room == 1300 ? 8 : 2); }, folder_.path());
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
    EXPECT_NE(error.find("(File too large)"), std::string::npos) << room << ": " << error;
    EXPECT_EQ(error.find("manifest.json") != std::string::npos, room == 1300) << error;
    store_.drop(8);
    EXPECT_EQ(steps(), std::vector<std::int64_t>{4});
    EXPECT_EQ(problem_of(store_.list().front()), std::nullopt);
    EXPECT_EQ(entries(), 1u);
  }
  write(8);
  EXPECT_EQ(steps(), (std::vector<std::int64_t>{8, 4}));
}

}  // namespace
}  // namespace kolo::models
