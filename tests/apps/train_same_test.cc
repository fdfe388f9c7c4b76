// What may and what may not depend on the number of ranks and on the run.

#include "tests/apps/train_testing.h"

namespace kolo::testing {
namespace {

/// A log without what depends on the clock.
std::string timeless(const std::filesystem::path& log) {
  std::string text;
  std::istringstream lines(read_file(log));
  for (std::string line; std::getline(lines, line);) {
    auto event = nlohmann::ordered_json::parse(line);
    for (const char* timed : {"samples_per_s", "tokens_per_s", "exposed_comm", "data_wait", "flops_per_s", "of_peak"}) {
      event.erase(timed);
    }
    text += event.dump() + "\n";
  }
  return text;
}

class TrainTwice : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, TrainTwice, ::testing::Values(2, 3));

TEST_P(TrainTwice, OneSeedGivesTheSameBits) {
  const TempFolder folder;
  for (const std::string run : {"1", "2"}) {
    const auto done =
        train(folder, GetParam(),
              fmt::format("--sizes 784,128,64,10 --batch 100 --steps 50 --seed 5 --save '{}' --log '{}'",
                          (folder / (run + ".safetensors")).string(), (folder / (run + ".jsonl")).string()));
    ASSERT_EQ(done.code, 0) << done.err;
  }
  EXPECT_EQ(read_file(folder / "1.safetensors"), read_file(folder / "2.safetensors"));
  EXPECT_EQ(timeless(folder / "1.jsonl"), timeless(folder / "2.jsonl"));
  EXPECT_EQ(losses_in(folder / "1.jsonl").size(), 50u);
}

TEST(TrainSame, AnotherSeedGivesOtherBits) {
  const TempFolder folder;
  for (const std::string seed : {"1", "2"}) {
    const auto done = train(folder, 0,
                            fmt::format("--sizes 784,10 --steps 3 --seed {} --save '{}'", seed,
                                        (folder / (seed + ".safetensors")).string()));
    ASSERT_EQ(done.code, 0) << done.err;
  }
  EXPECT_NE(read_file(folder / "1.safetensors"), read_file(folder / "2.safetensors"));
}

/// Whether ranks share the optimizer's state out, on one node or two, from the beginning or behind a checkpoint.
TEST(TrainSame, StateThatIsSharedOutGivesTheSameBits) {
  const TempFolder folder;
  const auto run = [&](const std::string& name, const std::string& flags, const std::string& environment = "") {
    const auto done = train(folder, 2,
                            fmt::format("--sizes 784,128,64,10 --batch 20 --optimizer adamw --save '{}' {}",
                                        (folder / (name + ".safetensors")).string(), flags),
                            environment);
    ASSERT_EQ(done.code, 0) << done.err;
  };
  const auto saved = [&](const std::string& name) { return read_file(folder / (name + ".safetensors")); };
  const std::string checkpoint = fmt::format("--checkpoint '{}'", (folder / "checkpoints").string());
  run("whole", "--steps 8 --zero 0");
  run("shards", "--steps 8 --zero 1");
  run("nodes", "--steps 8 --zero 1", "KOLO_FAKE_NODES=1,1");
  run("first half", "--steps 4 --zero 1 --schedule constant " + checkpoint);
  run("both halves", "--steps 8 --zero 0 --schedule constant --resume " + checkpoint);
  run("and on", "--steps 10 --zero 1 --schedule constant --resume " + checkpoint);
  run("at once", "--steps 10 --zero 0");
  EXPECT_EQ(saved("whole"), saved("shards"));
  EXPECT_EQ(saved("whole"), saved("nodes"));
  EXPECT_EQ(saved("whole"), saved("both halves"));
  EXPECT_EQ(saved("at once"), saved("and on"));
}

class TrainWorldSize : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Orders, TrainWorldSize, ::testing::Values("shuffled", "sequential"));

/// 8000 examples in steps of 1200: the last step of an epoch has 800, of which the fourth rank of four gets none.
TEST_P(TrainWorldSize, RanksTimesBatchIsAllThatMatters) {
  constexpr int global_batch = 1200;
  const TempFolder folder;
  const auto run = [&](int ranks, const std::string& more) {
    const auto name = fmt::format("{}", ranks);
    const auto done = train(folder, ranks,
                            fmt::format("--sizes 784,32,10 --order {} --batch {} --save '{}' --log '{}' {}", GetParam(),
                                        global_batch / std::max(ranks, 1), (folder / (name + ".safetensors")).string(),
                                        (folder / (name + ".jsonl")).string(), more));
    EXPECT_EQ(done.code, 0) << done.err;
  };
  run(0, "--steps 0");  // the first parameters
  for (int ranks : {1, 2, 3, 4}) run(ranks, "--epochs 3 --eval-batches all");

  const auto want = losses_in(folder / "1.jsonl");
  const auto want_eval = events_in(folder / "1.jsonl", "eval");
  ASSERT_EQ(want.size(), 21u);
  ASSERT_EQ(want_eval.size(), 3u);
  for (int ranks : {2, 3, 4}) {
    const auto log = folder / fmt::format("{}.jsonl", ranks);
    const auto got = losses_in(log);
    const auto got_eval = events_in(log, "eval");
    ASSERT_EQ(got.size(), want.size());
    for (std::size_t step = 0; step < want.size(); ++step) {
      EXPECT_NEAR(got[step], want[step], 2e-5 * want[step]) << ranks << " ranks, step " << step;
    }
    ASSERT_EQ(got_eval.size(), want_eval.size());
    for (std::size_t i = 0; i < want_eval.size(); ++i) {
      EXPECT_EQ(got_eval[i]["step"], want_eval[i]["step"]);
      EXPECT_NEAR(got_eval[i]["loss"].get<double>(), want_eval[i]["loss"].get<double>(), 1e-4);
      EXPECT_NEAR(got_eval[i]["accuracy"].get<double>(), want_eval[i]["accuracy"].get<double>(), 0.0011);
    }
    EXPECT_LT(apart(folder / fmt::format("{}.safetensors", ranks), folder / "1.safetensors", folder / "0.safetensors"),
              1e-4)
        << ranks << " ranks";
  }
}

}  // namespace
}  // namespace kolo::testing
