// What the recipe's flags do to a run: accumulation, gradients in 16 bits, learning rates, memory, and what is shown of
// it.

#include <sys/mman.h>
#include <unistd.h>

#include <bit>
#include <cstring>
#include <map>

#include <kolo/memory.h>

#include "apps/memory.h"
#include "apps/train/reports/plot.h"
#include "apps/train/reports/tensorboard.h"
#include "models/checkpoint/crc32c.h"
#include "tests/apps/train_testing.h"

namespace kolo::testing {
namespace {

class TrainRecipe : public ::testing::Test {
 protected:
  std::string path(std::string_view name) const { return fmt::format("'{}'", (folder_ / name).string()); }

  void run(int ranks, const std::string& name, const std::string& flags) {
    const auto done = train(folder_, ranks,
                            fmt::format("--sizes 784,24,10 {} {} --save {} --log {}",
                                        flags.find("--steps") == flags.npos ? "--steps 12" : "", flags,
                                        path(name + ".safetensors"), path(name + ".jsonl")));
    ASSERT_EQ(done.code, 0) << done.err;
  }
  std::filesystem::path saved(const std::string& name) const { return folder_ / (name + ".safetensors"); }
  double apart_from(const std::string& name, const std::string& other) const {
    return apart(saved(name), saved(other), saved("start"));
  }
  std::vector<double> of_steps(const std::string& name, const char* key) const {
    std::vector<double> all;
    for (const auto& event : events_in(folder_ / (name + ".jsonl"), "step")) all.push_back(event[key].get<double>());
    return all;
  }

  TempFolder folder_;
};

/// 8000 examples in steps of 600: 13 whole steps to an epoch, and one whose micro-batches are uneven, and empty on some
/// ranks.
TEST_F(TrainRecipe, AccumulatedBatchesAreOneLargeBatch) {
  run(0, "start", "--steps 0");
  run(0, "whole", "--batch 600 --epochs 2");
  run(2, "parts", "--batch 60 --accumulate 5 --epochs 2");
  EXPECT_LT(apart_from("parts", "whole"), 1e-4);
  const auto parts = losses_in(folder_ / "parts.jsonl"), whole = losses_in(folder_ / "whole.jsonl");
  ASSERT_EQ(parts.size(), whole.size());
  for (std::size_t step = 0; step < whole.size(); ++step) EXPECT_NEAR(parts[step], whole[step], 2e-5 * whole[step]);
}

TEST_F(TrainRecipe, GradientsIn16BitsAreNearlyTheSame) {
  run(0, "start", "--steps 0");
  run(2, "f32", "--batch 100");
  run(2, "bf16", "--batch 100 --wire bf16");
  run(2, "f16", "--batch 100 --wire f16");
  EXPECT_LT(apart_from("bf16", "f32"), 0.02);
  EXPECT_LT(apart_from("f16", "f32"), 0.004);
  EXPECT_GT(apart_from("bf16", "f32"), 1e-5) << "they were rounded";
  const auto exact = of_steps("f32", "grad_norm"), rounded = of_steps("f16", "grad_norm");
  for (std::size_t step = 0; step < exact.size(); ++step) EXPECT_NEAR(rounded[step] / exact[step], 1, 0.01);
}

/// Clipping far above any norm changes nothing but the last bits; far below, the step has the length that is asked for.
TEST_F(TrainRecipe, Clipping) {
  run(0, "start", "--steps 0");
  run(2, "free", "--batch 100");
  run(2, "loose", "--batch 100 --clip 1000");
  EXPECT_LT(apart_from("loose", "free"), 1e-6);
  run(2, "tight", "--batch 100 --clip 1e-3 --momentum 0 --lr 0.5 --steps 1");
  double moved = 0;
  const models::SafetensorsFile start(saved("start")), end(saved("tight"));
  for (const models::StoredTensor& tensor : start.tensors()) {
    std::vector<float> before((tensor.end - tensor.begin) / 4), after(before.size());
    start.read(tensor, before);
    end.read(*end.find(tensor.name), after);
    for (std::size_t i = 0; i < before.size(); ++i) moved += std::pow(static_cast<double>(after[i]) - before[i], 2);
  }
  EXPECT_NEAR(std::sqrt(moved), 0.5e-3, 1e-6);
  EXPECT_GT(of_steps("tight", "grad_norm")[0], 0.1) << "before clipping";
}

/// At the rate that suits grey digits, gradients of coloured images are now and then too large.
TEST_F(TrainRecipe, ColouredImagesAreClipped) {
  const auto file = [](std::initializer_list<int> extents, std::size_t bytes) {
    std::string text{0, 0, 8, static_cast<char>(extents.size())};
    for (const int extent : extents)
      text += std::string{0, 0, static_cast<char>(extent >> 8), static_cast<char>(extent)};
    for (std::size_t i = 0; i < bytes; ++i) text += static_cast<char>(i * i % 251 % 10);
    return text;
  };
  const auto recipe = [&](int planes, const std::string& flags) {
    const auto images = planes == 1 ? file({20, 12, 12}, 2880) : file({20, planes, 12, 12}, 2880 * 3);
    write_file(folder_ / "t10k-images-idx3-ubyte", images);
    write_file(folder_ / "t10k-labels-idx1-ubyte", file({20}, 20));
    const auto done = train(folder_, 0, "--model cnn --filters 8 --dense 8 --steps 1 --data " + path("") + flags);
    EXPECT_EQ(done.code, 0) << done.err;
    return done.out;
  };
  EXPECT_NE(recipe(3, "").find("momentum 0.9, clip 1\n"), std::string::npos);
  EXPECT_EQ(recipe(3, " --clip 0").find("clip"), std::string::npos);
  EXPECT_EQ(recipe(1, "").find("clip"), std::string::npos);
}

TEST_F(TrainRecipe, LearningRates) {
  run(2, "a", "--batch 100 --lr 0.1 --scale-lr --schedule linear --warmup 2 --steps 6 --min-lr 0.02");
  const auto lr = of_steps("a", "lr");
  const std::vector<double> want{0.1, 0.2, 0.2, 0.44 / 3, 0.28 / 3, 0.04};
  ASSERT_EQ(lr.size(), want.size());
  for (std::size_t step = 0; step < want.size(); ++step) EXPECT_NEAR(lr[step], want[step], 1e-12);
}

TEST_F(TrainRecipe, AugmentedDigitsAreOthersInEachEpoch) {
  run(2, "one", "--batch 100 --augment");
  run(2, "two", "--batch 100 --augment");
  run(2, "plain", "--batch 100");
  EXPECT_EQ(read_file(saved("one")), read_file(saved("two")));
  EXPECT_NE(read_file(saved("one")), read_file(saved("plain")));
}

TEST_F(TrainRecipe, RunningOutOfMemoryIsAnError) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "AddressSanitizer needs more address space than a limit allows";
#endif
  const auto done = run_shell(folder_, fmt::format("ulimit -v 1000000; {} --sizes 784,40000,10000,10", kolo_train(0)));
  ASSERT_EQ(done.problems().size(), 1u) << done.err;
  EXPECT_EQ(done.problems()[0], "there is not enough memory; use smaller sizes or fewer ranks on this machine");
  EXPECT_EQ(done.code, 1);
}

/// Linux promises more than there is, and kills a process that takes it.
TEST(LimitMemory, RefusesMoreThanThisRanksPartOfWhatIsLeft) {
  const auto can_take = [](std::size_t bytes) {
    return mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0) !=
           MAP_FAILED;
  };
  const std::size_t share = available_memory() / 100;
  EXPECT_TRUE(can_take(4 * share));
  EXPECT_EXIT(
      {
        limit_memory(100);
        _exit(can_take(4 * share) ? 1 : can_take(share / 4) ? 0 : 2);
      },
      ::testing::ExitedWithCode(0), "");
}

TEST_F(TrainRecipe, ACheckpointThatThereIsNoMemoryForIsRefused) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers need more memory than a limit allows";
#endif
  // 50 MB for parameters, gradients and momentum each, and 200 for two copies, over all ranks.
  for (int ranks : {0, 2}) {
    const auto done = run_shell(folder_, fmt::format("ulimit -d {}; {} --sizes 784,8000,800,10 --batch 10 --steps 2 "
                                                     "--checkpoint {} --every 1",
                                                     ranks == 0 ? 300000 : 260000, kolo_train(ranks), path("run")));
    EXPECT_EQ(done.code, 1) << done.err;
    ASSERT_EQ(done.problems().size(), 1u) << done.err;
    EXPECT_EQ(done.problems()[0], "there is not enough memory; use smaller sizes or fewer ranks on this machine");
  }
}

/// Wherever the memory runs out, one rank says so, and no rank is left with another's end only.
TEST_F(TrainRecipe, RanksThatRunOutOfMemoryAgree) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers need more address space than a limit allows";
#endif
  // What 1 GB does not hold: values and gradients with the momentum, and with both moments.
  for (const char* flags : {"--sizes 784,110000,10", "--sizes 784,90000,10 --optimizer adam"}) {
    const auto done = run_shell(
        folder_, fmt::format("ulimit -v 1000000; {} {} --steps 1 --log {}", kolo_train(2), flags, path("log")));
    EXPECT_EQ(done.code, 1) << flags << done.err;
    ASSERT_EQ(done.problems().size(), 1u) << flags << done.err;
    EXPECT_TRUE(done.problems()[0].starts_with("there is not enough memory") ||
                done.problems()[0].starts_with("there is no room to reach "))
        << flags << done.err;
  }
}

// --- TensorBoard's files, decoded by hand: TFRecords of protocol buffers.

template <class Number>
Number number_at(std::string_view bytes) {
  Number number{};
  if (bytes.size() < sizeof(Number)) throw std::runtime_error("cut off");
  std::memcpy(&number, bytes.data(), sizeof(Number));
  return number;
}

std::uint64_t varint(std::string_view& bytes) {
  std::uint64_t number = 0;
  for (unsigned shift = 0;; shift += 7) {
    const auto byte = static_cast<unsigned char>(bytes.at(0));
    bytes.remove_prefix(1);
    number |= std::uint64_t{byte & 0x7fu} << shift;
    if (byte < 0x80) return number;
  }
}

/// A field of a message: its number, and its bytes or its value.
struct Field {
  std::uint64_t number = 0;
  std::string_view bytes;
  std::uint64_t value = 0;
};

std::vector<Field> fields_of(std::string_view message) {
  std::vector<Field> fields;
  while (!message.empty()) {
    const std::uint64_t key = varint(message);
    Field field{.number = key >> 3};
    std::size_t size = 0;
    if ((key & 7) == 0) field.value = varint(message);
    if ((key & 7) == 1) size = 8;
    if ((key & 7) == 5) size = 4;
    if ((key & 7) == 2) size = varint(message);
    field.bytes = message.substr(0, size);
    message.remove_prefix(size);
    fields.push_back(field);
  }
  return fields;
}

std::uint32_t masked(std::string_view data) {
  return std::rotl(models::crc32c(data), 17) + 0xa282ead8u;
}

/// tag → step → value.
std::map<std::string, std::map<std::uint64_t, float>> scalars_in(const std::string& file) {
  std::map<std::string, std::map<std::uint64_t, float>> scalars;
  for (std::string_view rest = file; !rest.empty();) {
    const auto size = number_at<std::uint64_t>(rest);
    EXPECT_EQ(number_at<std::uint32_t>(rest.substr(8)), masked(rest.substr(0, 8)));
    const std::string_view message = rest.substr(12, size);
    EXPECT_EQ(number_at<std::uint32_t>(rest.substr(12 + size)), masked(message));
    rest.remove_prefix(16 + size);
    std::uint64_t step = 0;
    for (const Field& field : fields_of(message)) {
      if (field.number == 2) step = field.value;
      if (field.number != 5) continue;
      for (const Field& value : fields_of(field.bytes)) {
        const auto parts = fields_of(value.bytes);
        scalars[std::string(parts.at(0).bytes)][step] = number_at<float>(parts.at(1).bytes);
      }
    }
  }
  return scalars;
}

/// What an evaluation adds to a folder begins no session there: TensorBoard would ignore what is behind its step.
TEST_F(TrainRecipe, OnlyATrainingBeginsASession) {
  const auto sessions = [&](std::optional<std::int64_t> first) {
    const TempFolder folder;
    train::TensorBoard(folder.path().string(), first, 1).close();
    const std::string file = read_file(std::filesystem::directory_iterator(folder.path())->path());
    int count = 0;
    for (std::string_view rest = file; !rest.empty(); rest.remove_prefix(16 + number_at<std::uint64_t>(rest))) {
      for (const Field& field : fields_of(rest.substr(12, number_at<std::uint64_t>(rest))))
        count += field.number == 7 ? 1 : 0;
    }
    return count;
  };
  EXPECT_EQ(sessions(3), 1);
  EXPECT_EQ(sessions(std::nullopt), 0);
}

TEST_F(TrainRecipe, EventFilesSayWhatTheLogSays) {
  run(0, "a", "--batch 1000 --precision f16 --steps 22 --tensorboard " + path("events"));
  std::string file;
  for (const auto& entry : std::filesystem::directory_iterator(folder_ / "events")) {
    EXPECT_TRUE(entry.path().filename().string().starts_with("events.out.tfevents."));
    file += read_file(entry.path());
  }
  const auto scalars = scalars_in(file);
  for (const auto& [tag, key] : std::map<std::string, const char*>{{"train/loss", "loss"},
                                                                   {"train/lr", "lr"},
                                                                   {"train/grad_norm", "grad_norm"},
                                                                   {"train/loss_scale", "loss_scale"}}) {
    const auto logged = of_steps("a", key);
    ASSERT_EQ(scalars.at(tag).size(), logged.size());
    for (std::size_t step = 0; step < logged.size(); ++step) {
      EXPECT_EQ(scalars.at(tag).at(step), static_cast<float>(logged[step])) << tag;
    }
  }
  for (const auto& event : events_in(folder_ / "a.jsonl", "step")) {
    EXPECT_EQ(scalars.at("train/skipped").at(event["step"]), event["skipped"].get<bool>() ? 1 : 0);
    EXPECT_NEAR(scalars.at("speed/of_peak").at(event["step"]), event["of_peak"].get<double>(), 1e-4) << "rounded there";
  }
  for (const auto& event : events_in(folder_ / "a.jsonl", "eval")) {
    EXPECT_EQ(scalars.at("eval/accuracy").at(event["step"]), event["accuracy"].get<float>());
    EXPECT_EQ(scalars.at("eval/loss").at(event["step"]), event["loss"].get<float>());
  }
}

/// Of every parameter, after some steps: on two ranks, where the largest is shared out, as on one.
TEST_F(TrainRecipe, EventFilesHaveTheNormsOfParameters) {
  const auto norms = [&](int ranks, const std::string& name, const std::string& flags) {
    run(ranks, name, "--steps 5 --norms-every 2 --tensorboard " + path(name + "_events") + flags);
    std::map<std::string, std::map<std::uint64_t, float>> found;
    for (const auto& entry : std::filesystem::directory_iterator(folder_ / (name + "_events"))) {
      for (const auto& [tag, values] : scalars_in(read_file(entry.path()))) {
        if (tag.starts_with("norm/")) found[tag] = values;
      }
    }
    return found;
  };
  const auto one = norms(1, "one", " --batch 200"), two = norms(2, "two", " --batch 100 --clip 100");
  ASSERT_EQ(one.size(), 8u);
  for (const auto& [tag, values] : one) {
    ASSERT_EQ(values.size(), 3u) << tag;
    for (const auto& [step, value] : values) EXPECT_NEAR(two.at(tag).at(step), value, 1e-4 * value) << tag;
  }
  const models::SafetensorsFile end(saved("two"));
  double gradients = 0;
  for (const models::StoredTensor& tensor : end.tensors()) {
    std::vector<float> values((tensor.end - tensor.begin) / 4);
    end.read(tensor, values);
    double squares = 0;
    for (const float value : values) squares += static_cast<double>(value) * value;
    EXPECT_NEAR(two.at("norm/value/" + tensor.name).at(4), std::sqrt(squares), 1e-5 * std::sqrt(squares));
    gradients += std::pow(two.at("norm/gradient/" + tensor.name).at(4), 2);
  }
  EXPECT_NEAR(std::sqrt(gradients), of_steps("two", "grad_norm").at(4), 1e-5) << "together";
  const auto problem = train(folder_, 0, "--norms-every 3").problems();
  EXPECT_EQ(problem, std::vector<std::string>{"--norms-every needs --tensorboard DIR; add it"});
}

TEST_F(TrainRecipe, APictureOfTheLoss) {
  run(0, "a", "--batch 1000 --plot " + path("loss.svg"));
  const std::string svg = read_file(folder_ / "loss.svg");
  EXPECT_TRUE(svg.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\""));
  EXPECT_TRUE(svg.ends_with("</svg>\n"));
  EXPECT_NE(svg.find("held-out loss"), std::string::npos);
}

/// Points land where the axes say: a loss from 0 to 1 in 100 steps goes from corner to corner.
TEST(Plot, PutsPointsWhereTheyBelong) {
  train::Plot plot("", "a < b");
  for (int step = 0; step <= 100; ++step) plot.on_step({.step = step, .loss = step / 100.0});
  const std::string svg = plot.svg();
  EXPECT_NE(svg.find("points=\"60.0,310.0 "), std::string::npos) << svg;
  EXPECT_NE(svg.find(" 620.0,40.0 \""), std::string::npos);
  EXPECT_NE(svg.find("a &lt; b"), std::string::npos);
  EXPECT_EQ(svg.find("held-out"), std::string::npos);
  EXPECT_TRUE(train::Plot("", "none").svg().ends_with("</svg>\n"));
}

}  // namespace
}  // namespace kolo::testing
