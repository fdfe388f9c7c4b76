// Runs that stop and go on: the same as if they had not.

#include <sys/stat.h>

#include <chrono>

#include "models/checkpoint/manifest.h"
#include "tests/apps/train_testing.h"

namespace kolo::testing {
namespace {

class TrainResume : public ::testing::Test {
 protected:
  std::string path(std::string_view name) const { return fmt::format("'{}'", (folder_ / name).string()); }

  Finished run(int ranks, const std::string& flags) {
    const auto done = train(folder_, ranks, "--sizes 784,24,10 --optimizer adamw --lr 1e-3 --seed 5 " + flags);
    EXPECT_EQ(done.code, 0) << done.err;
    return done;
  }
  std::string problem(int ranks, const std::string& flags) {
    const auto done = train(folder_, ranks, "--sizes 784,24,10 --seed 5 " + flags);
    EXPECT_EQ(done.code, 1);
    const auto problems = done.problems();
    return problems.size() == 1 ? without_folder(problems.front()) : done.err;
  }
  std::string without_folder(std::string text) const { return without(folder_, std::move(text)); }
  std::vector<std::string> checkpoints(std::string_view name) const { return testing::checkpoints_in(folder_ / name); }

  TempFolder folder_;
};

/// Steps of 2 x 300 examples: 14 to an epoch, the last one uneven.
TEST_F(TrainResume, TheSameBitsAsARunWithoutAStop) {
  const std::string flags = "--batch 300 --schedule linear --warmup 4 --eval-every 7 ";
  run(2, flags + "--steps 20 --save " + path("straight.safetensors") + " --log " + path("straight.jsonl"));
  // Killed in effect: the run of 20 steps is made to end at 9 by resuming from a copy.
  run(2, flags + "--steps 20 --every 9 --keep 9 --checkpoint " + path("all"));
  EXPECT_EQ(checkpoints("all"), (std::vector<std::string>{"step-000000007", "step-000000009", "step-000000014",
                                                          "step-000000018", "step-000000020"}));
  std::filesystem::create_directory(folder_ / "cut");
  std::filesystem::copy(folder_ / "all/step-000000009", folder_ / "cut/step-000000009");
  std::filesystem::copy(folder_ / "straight.jsonl", folder_ / "cut.jsonl");
  const auto done = run(2, flags + "--steps 20 --checkpoint " + path("cut") + " --resume --log " + path("cut.jsonl") +
                               " --save " + path("resumed.safetensors"));
  EXPECT_NE(done.out.find("resume    from step 9 of "), std::string::npos) << done.out;
  EXPECT_EQ(read_file(folder_ / "resumed.safetensors"), read_file(folder_ / "straight.safetensors"));
  EXPECT_EQ(losses_in(folder_ / "cut.jsonl"), losses_in(folder_ / "straight.jsonl"));
  EXPECT_EQ(events_in(folder_ / "cut.jsonl", "eval").size(), events_in(folder_ / "straight.jsonl", "eval").size());
  EXPECT_EQ(checkpoints("cut"), (std::vector<std::string>{"step-000000014", "step-000000020"}));
}

/// A run that is asked to end early leaves a checkpoint, no model, and the code 0; and goes on as if it had not.
TEST_F(TrainResume, StopsWhenItsTimeIsOver) {
  const std::string flags = "--batch 300 --steps 30 --checkpoint " + path("c") + " --save " + path("a.safetensors");
  const auto stopped = run(2, flags + " --max-minutes 1e-9");
  EXPECT_NE(stopped.out.find("stopped   before the last step, as asked; --resume goes on\n"), std::string::npos)
      << stopped.out;
  EXPECT_EQ(checkpoints("c"), std::vector<std::string>{"step-000000001"});
  EXPECT_FALSE(std::filesystem::exists(folder_ / "a.safetensors"));
  EXPECT_EQ(run(2, flags + " --resume --max-minutes 60").out.find("stopped"), std::string::npos);
  run(2, "--batch 300 --steps 30 --save " + path("b.safetensors"));
  EXPECT_EQ(read_file(folder_ / "a.safetensors"), read_file(folder_ / "b.safetensors"));
}

/// The minutes count from the start of the program, and in evaluations and samples, too: these are cut.
TEST_F(TrainResume, StopsInTheMidstOfAnEvaluationWhenItsTimeIsOver) {
  std::string text;
  for (int line = 0; line < 400000; ++line) text += fmt::format("line {} of a long text\n", line);
  write_file(folder_ / "text", text);
  const std::string llama = "--model llama --preset tiny --batch 4 --seq 64 --max-minutes 0.05 --data " + path("text") +
                            " --val " + path("text");  // which takes a minute to evaluate
  for (const std::string& flags :
       {"--steps 2 --checkpoint " + path("c") + " --save " + path("m.safetensors"), std::string("--eval-only"),
        "--steps 4 --eval-every 2 --eval-batches all --checkpoint " + path("d")}) {
    SCOPED_TRACE(flags);
    const auto start = std::chrono::steady_clock::now();
    const auto done = train(folder_, 2, llama + " --sample 100000 " + flags);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    EXPECT_EQ(done.code, 0) << done.err;
    EXPECT_LT(took.count(), 12) << "3 s, and some to start and to end";
    EXPECT_NE(done.out.find("\nstopped   before "), std::string::npos) << done.out;
    EXPECT_NE(done.out.find("stopped   before the end of the sample, as asked\n"), std::string::npos) << done.out;
  }
  EXPECT_TRUE(std::filesystem::exists(folder_ / "m.safetensors")) << "all steps were done";
  EXPECT_EQ(checkpoints("d"), std::vector<std::string>{"step-000000002"}) << "behind which the evaluation was cut";
}

/// An evaluation that is due where a run is stopped is none of this run, but the first of the next one.
TEST_F(TrainResume, MakesUpForAnEvaluation) {
  const std::string flags = "--batch 300 --steps 6 --eval-every 1 --eval-batches 2 --keep 1 --checkpoint " + path("c");
  run(2, "--batch 300 --steps 6 --eval-every 1 --eval-batches 2 --log " + path("straight"));
  const auto stopped = run(2, flags + " --max-minutes 1e-9 --log " + path("log"));
  EXPECT_TRUE(events_in(folder_ / "log", "eval").empty()) << "it was begun";
  run(2, flags + " --resume --log " + path("log"));
  const auto losses = [&](std::string_view log) {
    std::vector<std::pair<int, double>> all;
    for (const auto& event : events_in(folder_ / log, "eval")) all.emplace_back(event["step"], event["loss"]);
    return all;
  };
  EXPECT_EQ(losses("log"), losses("straight"));
  EXPECT_EQ(losses("log").size(), 6u);
  const auto measured = losses("log");
  run(2, flags + " --resume --log " + path("log"));
  EXPECT_EQ(losses("log"), measured) << "what was measured is not made up for";
}

/// A run whose time is over when it goes on makes a step all the same, and leaves the evaluation out again: it is none
/// of a step that is behind.
TEST_F(TrainResume, MakesUpForNoEvaluationWhenItsTimeIsOver) {
  const std::string flags = "--batch 300 --steps 6 --eval-every 1 --eval-batches 2 --keep 9 --checkpoint " + path("c") +
                            " --log " + path("log");
  for (const std::string more : {"", " --resume", " --resume"}) {
    const auto stopped = run(2, flags + " --max-minutes 1e-9" + more);
    EXPECT_NE(stopped.out.find("as asked; --resume goes on"), std::string::npos) << stopped.out;
    EXPECT_TRUE(stopped.problems().empty()) << stopped.err;
  }
  EXPECT_EQ(checkpoints("c"), (std::vector<std::string>{"step-000000001", "step-000000002", "step-000000003"}));
  EXPECT_EQ(events_in(folder_ / "log", "step").size(), 3u);
  EXPECT_TRUE(events_in(folder_ / "log", "eval").empty());
  run(2, flags + " --resume --max-minutes 60");
  std::vector<int> steps;
  for (const auto& event : events_in(folder_ / "log", "eval")) steps.push_back(event["step"]);
  EXPECT_EQ(steps, (std::vector<int>{2, 3, 4, 5}));
}

/// Names are bytes, also in what one rank tells the others.
TEST_F(TrainResume, NamesNeedNotBeUtf8) {
  const std::string folder = "caf\xe9";
  std::filesystem::create_directory(folder_ / folder);
  const auto in = [&](const std::string& name) { return path(folder + "/" + name); };
  run(2, "--batch 300 --steps 1 --save " + in("m.safetensors"));
  const std::string flags = "--batch 300 --steps 4 --every 2 --init " + in("m.safetensors") + " --checkpoint " +
                            in("c") + " --log " + in("log") + " --save " + in("m");
  run(2, flags);
  std::filesystem::remove(folder_ / folder / "c/step-000000004/manifest.json");
  const auto done = run(2, flags + " --resume");
  ASSERT_EQ(done.problems().size(), 1u) << done.err;
  EXPECT_EQ(
      without_folder(done.problems()[0]),
      "the checkpoint of step 4 is damaged (cannot read DIR/caf\xef\xbf\xbd/c/step-000000004/manifest.json (it is "
      "missing or not readable); check the path and its permissions): going on from the one before it; it is now "
      "called unusable-step-000000004");
  EXPECT_EQ(checkpoints(folder + "/c"),
            (std::vector<std::string>{"step-000000002", "step-000000004", "unusable-step-000000004"}));
  EXPECT_TRUE(std::filesystem::exists(folder_ / folder / "m/config.json"));
}

/// As if it were cut: the checkpoint before it does.
TEST_F(TrainResume, AManifestThatIsNoFile) {
  const std::string flags = "--batch 500 --steps 4 --every 2 --checkpoint " + path("c");
  run(2, flags);
  const auto checkpoint = folder_ / "c/step-000000004", manifest = checkpoint / "manifest.json";
  const auto resumed = [&] {
    const auto problems = run(2, flags + " --resume").problems();
    EXPECT_EQ(problems.size(), 1u);
    return problems.empty() ? "" : problems[0].substr(0, problems[0].find(": going on"));
  };
  const std::string damaged = "the checkpoint of step 4 is damaged (";
  std::filesystem::remove(manifest);
  std::filesystem::create_directory(manifest);
  EXPECT_EQ(resumed(), damaged + "manifest.json is no regular file)");
  std::filesystem::remove(manifest);
  ASSERT_EQ(mkfifo(manifest.c_str(), 0600), 0);
  EXPECT_EQ(resumed(), damaged + "manifest.json is no regular file)");
}

TEST_F(TrainResume, ANewLogBeginsAtTheResumedStep) {
  run(0, "--batch 500 --steps 5 --checkpoint " + path("c"));
  run(0, "--batch 500 --steps 8 --checkpoint " + path("c") + " --resume --log " + path("log"));
  const auto steps = events_in(folder_ / "log", "step");
  ASSERT_EQ(steps.size(), 3u);
  EXPECT_EQ(steps[0]["step"], 5);
}

/// What a killed run has written behind its last checkpoint, half a line at the end, is written again.
TEST_F(TrainResume, LaterLinesOfALogAreReplaced) {
  const std::string log = " --log " + path("log");
  run(0, "--batch 500 --steps 6 --every 4 --keep 9 --checkpoint " + path("c") + log);
  std::filesystem::remove_all(folder_ / "c/step-000000006");
  write_file(folder_ / "log", read_file(folder_ / "log") + "{\"event\":\"step\",\"st");
  run(0, "--batch 500 --steps 7 --checkpoint " + path("c") + " --resume" + log);
  std::vector<int> steps;
  for (const auto& event : events_in(folder_ / "log", "step")) steps.push_back(event["step"].get<int>());
  EXPECT_EQ(steps, (std::vector<int>{0, 1, 2, 3, 4, 5, 6}));
}

/// A run that finds nothing left to do measures what there is: once in the log, and as of the step where it is.
TEST_F(TrainResume, ARunThatIsDoneMeasuresAgain) {
  const std::string flags = "--batch 500 --checkpoint " + path("c") + " --log " + path("log");
  run(0, flags + " --steps 6");
  const auto measured = events_in(folder_ / "log", "eval");
  run(0, flags + " --resume --steps 6");
  EXPECT_EQ(events_in(folder_ / "log", "eval"), measured);
  EXPECT_EQ(losses_in(folder_ / "log").size(), 6u);
}

/// Whatever is evaluated is a line behind those that are there, also if the last one was cut.
TEST_F(TrainResume, AnEvaluationCutsNoLog) {
  const std::string flags = "--batch 500 --checkpoint " + path("c") + " --log " + path("log");
  run(0, flags + " --steps 6 --every 3");
  const std::string log = read_file(folder_ / "log");
  const auto measured = events_in(folder_ / "log", "eval").back();
  run(0, flags + " --resume=3 --steps 6 --eval-only");
  const std::string longer = read_file(folder_ / "log");
  EXPECT_TRUE(longer.starts_with(log));
  EXPECT_EQ(events_in(folder_ / "log", "step").size(), 6u);
  EXPECT_EQ(events_in(folder_ / "log", "eval").back()["step"], 2);
  write_file(folder_ / "log", "{\"event\":\"ev");
  run(0, flags + " --resume --steps 4 --eval-only");
  std::istringstream lines(read_file(folder_ / "log"));
  std::string line;
  std::getline(lines, line);
  EXPECT_EQ(line, "{\"event\":\"ev");
  std::getline(lines, line);
  EXPECT_EQ(nlohmann::json::parse(line), measured);
}

TEST_F(TrainResume, WithoutAUsableCheckpointItStartsAtZero) {
  const auto done = run(2, "--batch 500 --steps 2 --resume --checkpoint " + path("new"));
  EXPECT_NE(done.out.find("resume    no usable checkpoint in "), std::string::npos) << done.out;
  EXPECT_NE(done.out.find("\nstored    1 checkpoint, training stood still for at most "), std::string::npos)
      << done.out;
  EXPECT_EQ(checkpoints("new"), std::vector<std::string>{"step-000000002"});
}

TEST_F(TrainResume, WithoutAUsableCheckpointThereIsNothingToEvaluate) {
  EXPECT_EQ(problem(2, "--resume --eval-only --checkpoint " + path("new")),
            "no usable checkpoint in DIR/new: there is nothing to evaluate");
}

TEST_F(TrainResume, WhatDoesNotBelongTogetherIsRefused) {
  const std::string to = " --checkpoint " + path("c");
  run(0, "--batch 500 --steps 2" + to);
  EXPECT_EQ(
      problem(2, "--steps 2" + to),
      "DIR/c holds checkpoints already (the newest of step 2); add --resume to go on from it, or name another folder");
  const std::string advice = "; resume with what it had, or write to another --checkpoint";
  const std::string adamw = "--optimizer adamw --batch 500 --resume --steps 4";
  EXPECT_EQ(
      problem(2, adamw + to),
      "the checkpoint is of another run: its examples per step (ranks x --batch x --accumulate) was 500, and now it is "
      "1000" +
          advice);
  EXPECT_EQ(problem(0, adamw + " --order sequential" + to),
            "the checkpoint is of another run: its --order was shuffled, and now it is sequential" + advice);
  EXPECT_EQ(problem(0, "--batch 500 --resume --steps 4" + to),
            "the checkpoint is of another run: its --optimizer was adamw, and now it is sgd" + advice);
  const auto done =
      train(folder_, 0, "--sizes 784,16,10 --seed 5 --resume --steps 4 --batch 500 --optimizer adamw" + to);
  EXPECT_NE(done.err.find("does not fit the model"), std::string::npos) << done.err;
}

/// The shapes of its tensors do not say it.
TEST_F(TrainResume, WhatInitSaysOfAModelIsCompared) {
  write_file(folder_ / "text", std::string(4000, 'x') + std::string(4000, 'y'));
  const auto llama = [&](const std::string& flags) {
    const auto done = train(folder_, 0, "--model llama --seq 16 --data " + path("text") + " " + flags);
    EXPECT_EQ(done.code, 0) << done.err;
    return done.out;
  };
  llama("--preset tiny --steps 0 --rope-theta 50000 --save " + path("one"));
  llama("--preset tiny --steps 0 --norm-eps 0.01 --save " + path("other"));
  const std::string to = " --checkpoint " + path("c");
  llama("--init " + path("one") + " --batch 8 --steps 2" + to);
  const std::string differences =
      "\n          --rope-theta was 50000 and is now 10000\n          --norm-eps was 1e-05 and is now 0.01\n";
  for (const std::string flags : {"--eval-only", "--batch 8 --steps 3"}) {
    const std::string same = llama("--init " + path("one") + " --resume " + flags + to);
    EXPECT_EQ(same.find("--rope-theta"), same.npos) << same;
    std::filesystem::remove_all(folder_ / "c/step-000000003");
    const std::string out = llama("--init " + path("other") + " --resume " + flags + to);
    EXPECT_NE(out.find(differences), out.npos) << out;
  }
}

/// Not trained back to a step that was passed; and nothing of the run is touched.
TEST_F(TrainResume, ACheckpointBehindTheEndOfTheRunIsRefused) {
  const std::string to = " --checkpoint " + path("c") + " --log " + path("log");
  run(0, "--batch 500 --steps 2" + to);
  const std::string log = read_file(folder_ / "log");
  for (const int ranks : {0, 2}) {
    EXPECT_EQ(
        problem(ranks, fmt::format("--optimizer adamw --batch {} --resume --steps 1", ranks == 0 ? 500 : 250) + to),
        "the checkpoint is of step 2, and this run ends at step 1; give more --steps or --epochs, or --eval-only");
  }
  EXPECT_EQ(read_file(folder_ / "log"), log);
  EXPECT_EQ(checkpoints("c"), std::vector<std::string>{"step-000000002"});
}

TEST_F(TrainResume, AFullDiskLosesOneCheckpointAndNothingElse) {
  const std::string flags = "--sizes 784,24,10 --batch 500 --checkpoint " + path("c");
  ASSERT_EQ(train(folder_, 0, flags + " --steps 2").code, 0);
  const auto done =
      run_shell(folder_, fmt::format("ulimit -f 40; {} {} --resume --steps 4 --every 1", kolo_train(0), flags));
  EXPECT_EQ(done.code, 1) << done.out;
  EXPECT_EQ(checkpoints("c"), std::vector<std::string>{"step-000000002"});
  ASSERT_EQ(done.problems().size(), 3u) << done.err;
  EXPECT_EQ(without_folder(done.problems()[0]).substr(0, 97),
            "the checkpoint of step 3 is lost, those before it are as they were: cannot write DIR/c/.writing-s");
  EXPECT_EQ(done.problems()[2].substr(0, 41), "the last checkpoint could not be written:");
  EXPECT_EQ(train(folder_, 0, flags + " --resume --steps 4").code, 0);
  EXPECT_EQ(checkpoints("c"), (std::vector<std::string>{"step-000000002", "step-000000004"}));
}

/// A run that goes on meanwhile keeps what is read, and nothing of it is touched.
TEST_F(TrainResume, EvaluatesBesideARun) {
  const std::string to = " --checkpoint " + path("c");
  const std::string beside =
      kolo_train(2) + " --sizes 784,24,10 --optimizer adamw --seed 5 --batch 125 --steps 4 --eval-only" + to;
  const auto done = run_shell(
      folder_,
      fmt::format(
          "{} --sizes 784,24,10 --optimizer adamw --seed 5 --batch 250 --steps 10000000 --every 3 --eval-every 9 "
          "--eval-batches 1 --keep 1 {} --log {} >{} &\nrun=$!\n"
          "until ls -d {}/step-*; do sleep 0.05; done\n"
          "for which in '' =best '' =best; do\n"
          "  {} --resume$which || code=3\ndone\nkill -TERM $run; wait $run; exit ${{code:-$?}}\n",
          kolo_train(0), to, path("log"), path("out"), path("c"), beside));
  EXPECT_EQ(done.code, 0) << done.err;
}

TEST_F(TrainResume, ADamagedCheckpointIsOnlyPassedOverByAnEvaluation) {
  run(0, "--batch 500 --steps 4 --every 2 --checkpoint " + path("c"));
  std::filesystem::resize_file(folder_ / "c/step-000000004/part-00000-of-00001.safetensors", 100);
  std::filesystem::remove(folder_ / "c/.lock");
  const auto done = run(2, "--batch 250 --steps 4 --eval-only --resume --checkpoint " + path("c"));
  ASSERT_EQ(done.problems().size(), 1u) << done.err;
  EXPECT_TRUE(done.problems().front().ends_with("): evaluating the one before it")) << done.err;
  EXPECT_NE(done.out.find("resume    from step 2 of "), std::string::npos) << done.out;
  EXPECT_EQ(checkpoints("c"), (std::vector<std::string>{"step-000000002", "step-000000004"}));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "c/.lock"));
}

/// Whatever trained it: an evaluation has no optimizer, and says what makes a difference to it.
TEST_F(TrainResume, MeasuresWithoutAnOptimizer) {
  const std::string wide = "--sizes 784,6000,400,10 --checkpoint " + path("c");
  const std::string training = wide + " --optimizer adamw --lr 1e-3 --seed 5 --batch 64 --accumulate 2 --augment";
  const auto mib_of = [&](const Finished& done) {
    EXPECT_EQ(done.code, 0) << done.out << done.err;
    const auto at = done.out.find("\nmemory    ");
    const auto end = done.out.find(" MiB per rank at the peak", at);
    if (at == done.out.npos || end == done.out.npos) return 0.;
    return std::stod(done.out.substr(done.out.rfind(' ', end - 1), end));
  };
  const auto trained = train(folder_, 2, training + " --steps 2 --log " + path("trained"));
  const auto evaluated = train(folder_, 2, wide + " --eval-only --resume --log " + path("measured"));
  constexpr double mib = 1 << 20, parameters = 784 * 6000 + 6000 * 400;
  EXPECT_LT(mib_of(evaluated), mib_of(trained) - 8 * parameters / mib) << "gradients, half a state, and a copy of that";
  EXPECT_EQ(events_in(folder_ / "measured", "eval"), events_in(folder_ / "trained", "eval"));
  EXPECT_EQ(evaluated.out.find(" and is now "), std::string::npos) << evaluated.out;
  const auto other = train(folder_, 1, wide + " --eval-only --resume --precision bf16 --optimizer adam --beta2 0.9");
  EXPECT_EQ(other.code, 0) << other.err;
  EXPECT_NE(other.out.find("\n          --precision was f32 and is now bf16\n"), std::string::npos) << other.out;
}

TEST_F(TrainResume, OnlyMeasuresWhatACheckpointHolds) {
  run(2, "--batch 500 --steps 4 --checkpoint " + path("c") + " --log " + path("trained"));
  run(2, "--batch 500 --eval-only --resume --checkpoint " + path("c") + " --log " + path("measured"));
  EXPECT_TRUE(losses_in(folder_ / "measured").empty());
  EXPECT_EQ(events_in(folder_ / "measured", "eval"), events_in(folder_ / "trained", "eval"));
}

}  // namespace
}  // namespace kolo::testing
