// What kolo-train writes while it trains, when it stops, and how well it does.

#include <chrono>
#include <thread>

#include "apps/train/reports/outputs.h"
#include "apps/train/reports/progress.h"
#include "tests/apps/train_testing.h"

namespace kolo::testing {
namespace {

class TrainLog : public ::testing::Test {
 protected:
  /// 8000 rendered digits: 8 steps an epoch on one rank.
  Finished run(const std::string& flags) {
    return train(folder_, 0, fmt::format("--sizes 784,16,10 --batch 1000 --log '{}' {}", log().string(), flags));
  }
  std::filesystem::path log() const { return folder_ / "log.jsonl"; }
  std::vector<int> evaluated_at() const {
    std::vector<int> steps;
    for (const auto& event : events_in(log(), "eval")) steps.push_back(event["step"].get<int>());
    return steps;
  }

  TempFolder folder_;
};

TEST(Peaks, NameGpusWhereThereAreAny) {
  constexpr std::uint64_t mib = 1 << 20;
  EXPECT_EQ(train::to_string(train::Peaks{{100 * mib, 100 * mib}, {0, 0}}),
            "memory    " + format_bytes(100 * mib) + " per rank at the peak\n");
  EXPECT_EQ(train::to_string(train::Peaks{{100 * mib, 200 * mib}, {300 * mib, 300 * mib}}),
            "memory    " + format_bytes(100 * mib) + " to " + format_bytes(200 * mib) + " per rank at the peak; " +
                format_bytes(300 * mib) + " in use on each rank's GPU\n");
}

TEST_F(TrainLog, LossScaleOfF16) {
  const auto done = run("--steps 3 --precision f16");
  ASSERT_EQ(done.code, 0) << done.err;
  for (const auto& event : events_in(log(), "step")) {
    EXPECT_EQ(event["loss_scale"], 8192);
    EXPECT_EQ(event["skipped"], false) << "the first scale overflows nothing";
  }
  EXPECT_NE(done.out.find("f16       0 steps skipped since gradients overflowed; the loss scale is 8192\n"),
            std::string::npos)
      << done.out;
}

TEST_F(TrainLog, AnEventForEveryStep) {
  write_file(log(), "of an older run\n");
  const auto done = run("--steps 10 --lr 0.05");
  ASSERT_EQ(done.code, 0) << done.err;
  const auto steps = events_in(log(), "step");
  ASSERT_EQ(steps.size(), 10u);
  for (std::size_t i = 0; i < steps.size(); ++i) {
    EXPECT_EQ(steps[i].size(), 7u);
    EXPECT_EQ(steps[i]["step"].get<std::size_t>(), i);
    EXPECT_EQ(steps[i]["lr"].get<double>(), 0.05);
    EXPECT_GT(steps[i]["loss"].get<double>(), 0);
    EXPECT_GT(steps[i]["grad_norm"].get<double>(), 0);
    EXPECT_GT(steps[i]["samples_per_s"].get<double>(), 0);
    EXPECT_GE(steps[i]["exposed_comm"].get<double>(), 0);
    EXPECT_LE(steps[i]["exposed_comm"].get<double>(), 1);
  }
  EXPECT_EQ(evaluated_at(), (std::vector<int>{7, 9})) << "after these steps";
  const auto text = read_file(log());
  EXPECT_EQ(text.substr(0, 33), R"({"event":"step","step":0,"loss":2)");
  EXPECT_NE(text.find(R"({"event":"eval","step":7,"loss":)"), std::string::npos);
  EXPECT_LT(steps.back()["loss"].get<double>(), steps.front()["loss"].get<double>());
}

TEST_F(TrainLog, StepsAndEpochsEndTheRun) {
  ASSERT_EQ(run("--steps 20 --epochs 2").code, 0);
  EXPECT_EQ(evaluated_at(), (std::vector<int>{7, 15}));
  ASSERT_EQ(run("--steps 5 --epochs 2").code, 0);
  EXPECT_EQ(evaluated_at(), std::vector<int>{4});
  ASSERT_EQ(run("--steps 17").code, 0);
  EXPECT_EQ(evaluated_at(), (std::vector<int>{7, 15, 16}));
  ASSERT_EQ(run("--steps 0").code, 0);
  EXPECT_EQ(evaluated_at(), std::vector<int>{0});
}

TEST_F(TrainLog, EvaluatesWhenAskedToAndAtTheEnd) {
  ASSERT_EQ(run("--steps 10 --eval-every 4").code, 0);
  EXPECT_EQ(evaluated_at(), (std::vector<int>{3, 7, 9}));
}

TEST_F(TrainLog, TheSummarySaysHowItWent) {
  const auto done = run("--epochs 1");
  for (std::string_view word :
       {"data      digits", "epoch 1/1", "samples/s over 1 rank", "waiting for communication", "% held-out", "loss "}) {
    EXPECT_NE(done.out.find(word), std::string::npos) << word << " in\n" << done.out;
  }
  EXPECT_EQ(done.out.find('\r'), std::string::npos) << "no terminal here";
}

/// What is done soon is not worth a line; what takes longer than a line's turn is.
TEST(Progress, OfWhatTakesLong) {
  ::testing::internal::CaptureStdout();
  train::Progress progress(0, 9, 3);
  for (int done = 0; done < 4; ++done) progress.on_part({"writing", done, 4});
  progress.on_part({"measuring", 0, 4});
  std::this_thread::sleep_for(std::chrono::milliseconds(2050));  // but on a terminal a line comes every two seconds
  progress.on_part({"measuring", 2, 4});
  progress.on_part({"measuring", 3, 4});
  EXPECT_EQ(::testing::internal::GetCapturedStdout(), "step 0/9 measuring 50%\n");
}

TEST(TrainAccuracy, LearnsTheRenderedDigits) {
  const TempFolder folder;
  const auto log = folder / "log.jsonl";
  const auto done = train(folder, 2, fmt::format("--sizes 784,128,10 --epochs 10 --log '{}'", log.string()));
  ASSERT_EQ(done.code, 0) << done.err;
  EXPECT_GT(events_in(log, "eval").back()["accuracy"].get<double>(), 0.9);
}

}  // namespace
}  // namespace kolo::testing
