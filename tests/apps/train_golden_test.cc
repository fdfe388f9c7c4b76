// kolo-train's command line against the numbers of another implementation, on several numbers of ranks.

#include "tests/apps/train_testing.h"

namespace kolo::testing {
namespace {

/// Ten steps of one of the reference models. Of the flags, SHARED and GOLDEN stand for folders.
struct GoldenRun {
  std::string name;
  std::string folder;  ///< in shared/golden
  std::string flags;
  std::int64_t batch;  ///< over all ranks and micro-batches
  std::string end;     ///< the weights after ten steps
  std::string trace;   ///< the list of losses in trace.json; "steps" has objects
  double tolerance;    ///< of the weights, by the distance moved
  std::vector<int> ranks;
  int steps = 10;  ///< that --steps says: the reference's schedule ends a step behind its last
};

std::string replaced(std::string text, std::string_view what, const std::string& by) {
  for (std::size_t at = 0; (at = text.find(what)) != std::string::npos;) text.replace(at, what.size(), by);
  return text;
}

std::vector<double> numbers(const nlohmann::json& steps, const char* key) {
  std::vector<double> all;
  for (const auto& step : steps) all.push_back(step.is_object() ? step[key].get<double>() : step.get<double>());
  return all;
}

std::vector<std::filesystem::path> weights_of(const std::filesystem::path& golden) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(golden)) {
    const auto name = entry.path().filename().string();
    if (name.starts_with("model") && name.ends_with(".safetensors")) files.push_back(entry.path());
  }
  return files;
}

class TrainGolden : public ::testing::TestWithParam<GoldenRun> {
 protected:
  void check(const std::string& flags) {
    const GoldenRun& run = GetParam();
    const auto log = folder_ / "log.jsonl", save = folder_ / "save.safetensors";
    const auto with_steps = [&](int steps, const std::string& more) {
      const auto done =
          train(folder_, ranks_, fmt::format("{} --steps {} --log '{}' {}", flags, steps, log.string(), more));
      ASSERT_EQ(done.code, 0) << done.err;
    };
    const auto to_save = fmt::format(" --save '{}'", save.string());
    if (run.steps == 10) {
      with_steps(10, to_save);
    } else {  // what was there after ten of its steps
      const auto checkpoints = folder_ / "checkpoints";
      const auto keep = fmt::format(" --checkpoint '{}'", checkpoints.string());
      std::filesystem::remove_all(checkpoints);
      with_steps(run.steps, keep + " --every 10");
      std::filesystem::remove_all(checkpoints / fmt::format("step-{:09}", run.steps));
      with_steps(10, keep + " --resume" + to_save);
    }
    const auto trace = nlohmann::json::parse(read_file(golden_ / "trace.json"))[run.trace];
    const auto want = numbers(trace, "loss"), got = losses_in(log);
    ASSERT_EQ(got.size(), want.size());
    for (std::size_t step = 0; step < want.size(); ++step)
      EXPECT_NEAR(got[step], want[step], 2e-5 * want[step]) << step;
    if (trace[0].is_object()) {
      const auto events = events_in(log, "step");
      for (std::size_t step = 0; step < want.size(); ++step) {
        EXPECT_NEAR(events[step]["lr"].get<double>(), trace[step]["lr"].get<double>(), 1e-12);
        EXPECT_NEAR(events[step]["grad_norm"].get<double>() / trace[step]["grad_norm"].get<double>(), 1, 1e-4);
        EXPECT_GT(events[step]["tokens_per_s"].get<double>(), 0);
      }
    }
    for (const auto& start : weights_of(golden_)) {
      EXPECT_LT(apart(save, golden_ / (run.end + ".safetensors"), start), run.tolerance) << start;
    }
  }

  TempFolder folder_;
  std::filesystem::path golden_;
  int ranks_ = 1;
};

const std::string digits_flags = "--data 'SHARED/data' --init 'GOLDEN/model.safetensors' --order sequential ";
const std::string text =
    "--model llama --data 'GOLDEN/tokens.u16' --tokens u16 --init 'GOLDEN' --order sequential "
    "--optimizer adamw --lr 3e-3 --min-lr 3e-4 --schedule cosine --warmup 3 --weight-decay 0.1 --beta1 0.9 "
    "--beta2 0.95 --clip 1 ";
const std::string sgd = "--optimizer sgd --lr 0.05 --momentum 0.9 ";
const std::string adamw = "--optimizer adamw --lr 1e-3 --weight-decay 0.01 ";

INSTANTIATE_TEST_SUITE_P(
    Models, TrainGolden,
    ::testing::Values(
        GoldenRun{"mlp_sgd", "mlp", "--model mlp " + digits_flags + sgd, 32, "after_10_sgd", "sgd", 1e-4, {1, 2, 4}},
        GoldenRun{
            "mlp_adamw", "mlp", "--model mlp " + digits_flags + adamw, 32, "after_10_adamw", "adamw", 1e-4, {1, 2}},
        GoldenRun{"cnn_sgd", "cnn", "--model cnn " + digits_flags + sgd, 32, "after_10_sgd", "sgd", 1e-4, {1, 2}},
        GoldenRun{
            "cnn_adamw", "cnn", "--model cnn " + digits_flags + adamw, 32, "after_10_adamw", "adamw", 1e-4, {1, 2}},
        GoldenRun{"llama", "llama", text + "--seq 32 ", 4, "after_10_steps", "steps", 5e-3, {1, 2}, 11},
        GoldenRun{"tied", "llama_tied_sharded", text + "--seq 29 ", 3, "after_10_steps", "steps", 5e-3, {1, 3}, 11}),
    [](const auto& info) { return info.param.name; });

TEST_P(TrainGolden, TenStepsGiveTheSameLossesAndWeights) {
  const auto shared = shared_dir();
  if (shared.empty()) GTEST_SKIP() << "the reference numbers are not here (KOLO_SHARED_DIR)";
  golden_ = shared / "golden" / GetParam().folder;
  const std::string flags = replaced(replaced(GetParam().flags, "SHARED", shared.string()), "GOLDEN", golden_.string());
  for (const int ranks : GetParam().ranks) {
    SCOPED_TRACE(fmt::format("{} ranks", ranks));
    ranks_ = ranks;
    check(fmt::format("{} --batch {}", flags, GetParam().batch / ranks));
  }
  SCOPED_TRACE("one rank that accumulates");
  ranks_ = 0;
  check(fmt::format("{} --batch 1 --accumulate {}", flags, GetParam().batch));
}

}  // namespace
}  // namespace kolo::testing
