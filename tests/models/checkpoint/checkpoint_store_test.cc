// Checkpoints on disk: written in one piece or not at all, and never believed if damaged.

#include "models/checkpoint/store.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <vector>

#include "models/checkpoint/crc32c.h"
#include "tests/models/models_testing.h"

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

class Store : public ::testing::Test {
 protected:
  Snapshot snapshot(std::int64_t step) {
    Snapshot now;
    now.step = step;
    now.state = "{\"seed\":7}";
    now.copy(mlp_.model, *optimizer_);
    return now;
  }
  std::vector<std::int64_t> steps(const CheckpointStore& store) {
    std::vector<std::int64_t> all;
    for (const auto& checkpoint : store.list()) all.push_back(checkpoint.step);
    return all;
  }
  std::size_t entries() {
    return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(store_.folder()), {}));
  }

  TempFolder folder_;
  CheckpointStore store_{folder_ / "deep/checkpoints", 3};
  BoundMlp mlp_{{5, 4, 3}};
  std::unique_ptr<Optimizer> optimizer_ = make_optimizer({.name = "adamw"}, mlp_.model.parameters());
};

/// Training waits for it, so it is a copy and nothing else.
TEST_F(Store, ASecondSnapshotUsesTheMemoryOfTheFirst) {
  Snapshot now = snapshot(1);
  const auto memory = [&] {
    std::vector<const float*> all;
    for (const auto* tensors : {&now.values, &now.optimizer}) {
      for (const SnapshotTensor& tensor : *tensors) all.push_back(tensor.values.data());
    }
    return all;
  };
  const auto before = memory();
  mlp_.values[3] = 17;
  now.copy(mlp_.model, *optimizer_);
  EXPECT_EQ(memory(), before);
  EXPECT_EQ(now.values[0].values[3], 17);
}

TEST_F(Store, KeepsTheNewest) {
  EXPECT_TRUE(store_.list().empty());
  for (const std::int64_t step : {0, 5, 10, 15, 1'000'000'000}) store_.write(snapshot(step));
  EXPECT_EQ(steps(store_), (std::vector<std::int64_t>{1'000'000'000, 15, 10}));
  for (const auto& checkpoint : store_.list()) EXPECT_EQ(problem_of(checkpoint), std::nullopt);
  EXPECT_EQ(entries(), 3u) << "nothing else is left";
  store_.write(snapshot(15));
  EXPECT_EQ(steps(store_), (std::vector<std::int64_t>{1'000'000'000, 15, 10})) << "the same step again";
}

TEST_F(Store, GivesBackWhatWasWritten) {
  for (std::size_t i = 0; i < mlp_.gradients.size(); ++i) mlp_.gradients[i] = static_cast<float>(i);
  optimizer_->step(0.1, 1);
  const AlignedFloats values = mlp_.values;
  store_.write(snapshot(1));
  BoundMlp other({5, 4, 3}, 2);
  const auto fresh = make_optimizer({.name = "adamw"}, other.model.parameters());
  EXPECT_EQ(load_checkpoint(store_.list().front(), other.model, fresh->state()), "{\"seed\":7}");
  EXPECT_EQ(other.values, values);
  const auto want = optimizer_->state(), got = fresh->state();
  for (std::size_t i = 0; i < want.size(); ++i) EXPECT_TRUE(std::ranges::equal(want[i].values, got[i].values)) << i;

  const auto sgd = make_optimizer({.name = "sgd"}, other.model.parameters());
  EXPECT_NE(error_of([&] {
              load_checkpoint(store_.list().front(), other.model, sgd->state());
            }).find("optimizer.safetensors has no 'velocity.layers.0.weight'; resume with the optimizer that wrote it"),
            std::string::npos);
}

/// Every byte of a checkpoint matters.
TEST_F(Store, AnyDamageIsFound) {
  store_.write(snapshot(4));
  const StoredCheckpoint checkpoint = store_.list().front();
  for (const auto& entry : std::filesystem::directory_iterator(checkpoint.folder)) {
    const std::string whole = read_file(entry.path());
    for (std::size_t at = 0; at < whole.size(); at += std::max<std::size_t>(whole.size() / 16, 1)) {
      std::string damaged = whole;
      damaged[at] = static_cast<char>(damaged[at] ^ 4);
      write_file(entry.path(), damaged);
      if (entry.path().filename() != "manifest.json") {
        EXPECT_TRUE(problem_of(checkpoint).has_value()) << entry.path() << " byte " << at;
      }
      write_file(entry.path(), whole.substr(0, at));
      EXPECT_TRUE(problem_of(checkpoint).has_value()) << entry.path() << " cut at " << at;
    }
    std::filesystem::remove(entry.path());
    EXPECT_TRUE(problem_of(checkpoint).has_value()) << entry.path() << " gone";
    ASSERT_EQ(mkfifo(entry.path().c_str(), 0600), 0);
    EXPECT_TRUE(problem_of(checkpoint).has_value()) << entry.path() << " a pipe";
    std::filesystem::remove(entry.path());
    write_file(entry.path(), whole);
    ASSERT_EQ(problem_of(checkpoint), std::nullopt);
  }
  write_file(checkpoint.folder / "model.safetensors", "short");
  EXPECT_EQ(problem_of(checkpoint)->substr(0, 37), "model.safetensors has 5 bytes instead");
}

TEST_F(Store, WhatIsUnusableIsSetAside) {
  store_.write(snapshot(4));
  store_.write(snapshot(8));
  store_.set_aside(store_.list().front());
  EXPECT_EQ(steps(store_), std::vector<std::int64_t>{4});
  EXPECT_TRUE(std::filesystem::exists(store_.folder() / "unusable-step-000000008/model.safetensors"));
}

TEST_F(Store, LeftoversGo) {
  store_.write(snapshot(4));
  std::filesystem::create_directories(store_.folder() / ".writing-step-000000008");
  std::filesystem::create_directories(store_.folder() / ".removing-step-000000001");
  write_file(store_.folder() / ".writing-step-000000008/model.safetensors", "half");
  EXPECT_EQ(steps(store_), std::vector<std::int64_t>{4});
  store_.remove_leftovers();
  EXPECT_EQ(entries(), 1u);
}

/// A file size limit stands for a disk that is full: it stops a write in the middle.
TEST_F(Store, AFullDiskHarmsNothing) {
  store_.write(snapshot(4));
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  for (const rlim_t room : {0, 40, 300, 700}) {  // within each of the files
    const rlimit tight{room, before.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &tight), 0);
    const std::string error = error_of([&] { store_.write(snapshot(8)); }, folder_.path());
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
    EXPECT_NE(error.find("(File too large)"), std::string::npos) << room << ": " << error;
    EXPECT_EQ(steps(store_), std::vector<std::int64_t>{4});
    EXPECT_EQ(problem_of(store_.list().front()), std::nullopt);
    EXPECT_EQ(entries(), 1u);
  }
  store_.write(snapshot(8));
  EXPECT_EQ(steps(store_), (std::vector<std::int64_t>{8, 4}));
}

}  // namespace
}  // namespace kolo::models
