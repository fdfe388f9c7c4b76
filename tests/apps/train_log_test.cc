// What kolo-train writes while it trains, when it stops, and how well it does.

#include <chrono>
#include <cmath>
#include <thread>

#include "apps/train/evaluator.h"
#include "apps/train/reports/outputs.h"
#include "apps/train/reports/progress.h"
#include "apps/train/reports/step_log.h"
#include "apps/train/reports/time_left.h"
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
    EXPECT_EQ(steps[i].size(), 9u);
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
  train::Progress progress(0, 9, 3, 3);
  for (int done = 0; done < 4; ++done) progress.on_part({"writing", done, 4});
  progress.on_part({"measuring", 0, 4});
  std::this_thread::sleep_for(std::chrono::milliseconds(2050));  // but on a terminal a line comes every two seconds
  progress.on_part({"measuring", 2, 4});
  progress.on_part({"measuring", 3, 4});
  EXPECT_EQ(::testing::internal::GetCapturedStdout(), "step 0/9 measuring 50%\n");
}

TEST(StepTime, ForgetsTheFirstSteps) {
  train::StepTime time;
  EXPECT_EQ(time.seconds(), 0);
  time.add(100);
  EXPECT_EQ(time.seconds(), 100) << "better than none";
  time.add(50);
  time.add(1);
  EXPECT_EQ(time.seconds(), 1);
  time.add(2);
  EXPECT_EQ(time.seconds(), 1.5);
  for (int step = 0; step < 500; ++step) time.add(7);
  EXPECT_NEAR(time.seconds(), 7, 1e-6) << "and those of long ago";
}

/// 100 steps of 2 s from the 30th on, an evaluation of 3 batches after each ten, and one of all 30 at the end.
TEST(TimeLeft, CountsStepsAndEvaluations) {
  train::TimeLeft left(100, 10);
  const auto step = [&](std::int64_t number) { left.add(train::StepEvent{.step = number, .seconds = 2}); };
  step(30);
  step(31);
  EXPECT_FALSE(left.seconds().has_value());
  for (std::int64_t number = 32; number < 40; ++number) step(number);
  EXPECT_EQ(left.seconds(), 120) << "nothing is known of evaluations";
  left.add(train::EvalEvent{.batches = 3, .all_batches = 30, .seconds = 6});
  EXPECT_EQ(left.seconds(), 120 + 5 * 6 + 60);
  for (std::int64_t number = 40; number < 99; ++number) step(number);
  EXPECT_EQ(left.seconds(), 2 + 60);
  step(99);
  EXPECT_EQ(left.seconds(), 0);
}

TEST(TimeLeft, ReadsLikeAClock) {
  EXPECT_EQ(train::duration_text(0.4), "0:00");
  EXPECT_EQ(train::duration_text(59.6), "1:00");
  EXPECT_EQ(train::duration_text(754), "12:34");
  EXPECT_EQ(train::duration_text(3723), "1:02:03");
  EXPECT_EQ(train::duration_text(2 * 86400 + 3 * 3600 + 240), "2d 03:04");
}

TEST(Evaluator, TakesTheUsualTimeOfABatch) {
  const auto seconds = [](const std::vector<double>& took) { return train::seconds_of_batch(took); };
  EXPECT_EQ(seconds({}), 0);
  EXPECT_EQ(seconds({9}), 9) << "better than none";
  EXPECT_EQ(seconds({9, 2}), 2) << "the first one reserves memory";
  EXPECT_EQ(seconds({9, 2, 80, 3}), 3);
}

/// Examples that take 10 ms to read.
class SlowExamples final : public models::Examples {
 public:
  std::int64_t count() const override { return 8; }
  std::int64_t targets_each() const override { return 1; }
  void gather(std::span<const std::int64_t> examples, std::int64_t, models::BatchStorage& to) const override {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    to.examples = std::ssize(examples);
    to.inputs.assign(2 * examples.size(), 0.5f);
    to.targets.assign(examples.size(), 0);
  }
};

/// Where a batch takes longer than there is time for an evaluation, one is timed, and not four.
TEST(Evaluator, TimesAsManyBatchesAsThereIsTimeFor) {
  BoundMlp mlp({2, 3});
  const auto timed = [&](double seconds, std::int64_t most) {
    return train::time_batches(mlp.model, SlowExamples(), {.range = {0, 8}, .batch = 1, .most = most}, seconds,
                               [] { return true; });
  };
  EXPECT_EQ(timed(1e-6, 4).size(), 1u);
  EXPECT_EQ(timed(1000, 4).size(), 4u);
  EXPECT_EQ(timed(1000, 0).size(), 0u);
  EXPECT_GE(timed(1000, 2).at(0), 0.01) << "reading is a part of it";
}

TEST(Progress, SaysWhatIsLeftAndHowMuchWasMeasured) {
  ::testing::internal::CaptureStdout();
  train::Progress progress(0, 100, 20, 10);
  for (std::int64_t step = 0; step < 10; ++step) {
    progress.on_step({.step = step,
                      .examples = 4,
                      .tokens = 40,
                      .loss = 2,
                      .seconds = 2,
                      .wait_seconds = 0.5,
                      .data_seconds = 0.2,
                      .flops = 4e9,
                      .peak_flops = 8e9});
  }
  progress.on_eval(
      {.loss = 1, .of_tokens = true, .bytes_per_target = 2, .batches = 3, .all_batches = 30, .seconds = 3});
  const std::string line = ::testing::internal::GetCapturedStdout();
  for (const std::string_view part : {"step 10/100 3:54 left loss 2.0000 held-out 1.0000",
                                      " perplexity 2.718 bits/byte 0.7213 of 3/30 batches", " waiting 25% data 10%"}) {
    EXPECT_NE(line.find(part), line.npos) << part << " in " << line;
  }
  const std::string summary = progress.summary(2);
  EXPECT_NE(summary.find("\ntext      perplexity 2.718, 0.7213 bits per byte held-out\n"), summary.npos) << summary;
  EXPECT_NE(summary.find("25.0 % of the step time waiting for communication, 10.0 % for data\nflops     2.0 GFLOP/s in "
                         "products, 25 % of the 8.0 GFLOP/s that products alone reached at the start\n"),
            summary.npos)
      << summary;
}

/// Whatever happens, lines are JSON, which has no infinity.
TEST_F(TrainLog, NumbersThatAreNotFiniteAreNull) {
  train::StepLog written(log().string(), 1);
  written.begin(0, true, {});
  written.on_step({.examples = 1, .grad_norm = INFINITY, .skipped = true, .seconds = 1});
  written.on_eval({.loss = 1000, .of_tokens = true, .bytes_per_target = 1});
  written.close();
  EXPECT_TRUE(events_in(log(), "step").at(0)["grad_norm"].is_null());
  const auto eval = events_in(log(), "eval").at(0);
  EXPECT_TRUE(eval["perplexity"].is_null());
  EXPECT_NEAR(eval["bits_per_byte"].get<double>(), 1000 / std::log(2), 1e-9);
}

/// Whatever is in the file is no reason to end a run that resumes.
TEST_F(TrainLog, LinesOfOthersAreDropped) {
  const std::string own = R"({"event":"step","step":0,"loss":2.5,"lr":0.1})";
  write_file(log(), R"({"event":1})"
                    "\n"
                    R"({"event":null,"step":0})"
                    "\n[1]\n3\n{}\n" +
                        own +
                        "\n"
                        R"({"event":{}})"
                        "\n");
  train::StepLog resumed(log().string(), 1);
  resumed.begin(1, true, {});
  resumed.close();
  EXPECT_EQ(read_file(log()), own + "\n");
}

TEST_F(TrainLog, EveryFewStepsOnly) {
  const auto steps = [&] {
    std::vector<int> all;
    for (const auto& event : events_in(log(), "step")) all.push_back(event["step"].get<int>());
    return all;
  };
  const std::string checkpoint = fmt::format("--checkpoint '{}' --log-every 3 ", (folder_ / "run").string());
  ASSERT_EQ(run(checkpoint + "--steps 5").code, 0);
  EXPECT_EQ(steps(), (std::vector{0, 3}));
  ASSERT_EQ(run(checkpoint + "--steps 8 --resume").code, 0);
  EXPECT_EQ(steps(), (std::vector{0, 3, 6}));
  EXPECT_EQ(events_in(log(), "eval").back()["step"], 7);
  EXPECT_EQ(train(folder_, 0, "--log-every 3").problems(),
            std::vector<std::string>{"--log-every needs --log FILE.jsonl or --tensorboard DIR; add it"});
}

/// Products of 784 x 16 twice in a step, those of 16 x 10 three times.
TEST_F(TrainLog, FlopsOfSteps) {
  const auto done = run("--steps 22");
  ASSERT_EQ(done.code, 0) << done.err;
  EXPECT_NE(done.out.find("that products alone reached at the start\n"), done.out.npos) << done.out;
  for (const auto& event : events_in(log(), "step")) {
    const double each = event["flops_per_s"].get<double>() / event["samples_per_s"].get<double>();
    EXPECT_NEAR(each, 2 * (2 * 784 * 16 + 3 * 16 * 10), 1);
    EXPECT_GT(event["of_peak"].get<double>(), 0);
    EXPECT_GE(event["data_wait"].get<double>(), 0);
    EXPECT_LE(event["data_wait"].get<double>(), 1);
  }
  for (const auto& event : events_in(log(), "eval")) {
    EXPECT_FALSE(event.contains("perplexity")) << "of images";
    EXPECT_FALSE(event.contains("bits_per_byte"));
  }
}

/// A machine that has the instructions is told to leave them out.
TEST_F(TrainLog, PrecisionsThatAreSlowAreNamed) {
  const auto said = [&](const std::string& flags) {
    return train(folder_, 0, "--sizes 784,10 --steps 1 " + flags, "ONEDNN_MAX_CPU_ISA=AVX2")
               .out.find("slower than f32, since this processor has no products of it") != std::string::npos;
  };
  EXPECT_TRUE(said("--precision bf16"));
  EXPECT_FALSE(said(""));
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
