// SIGTERM and SIGUSR1 at any moment of a run: what was asked for is done, on all ranks, and nothing is lost.

#include "apps/train/requests.h"

#include <chrono>
#include "tests/apps/train_testing.h"

namespace kolo::testing {
namespace {

TEST(Requests, AgesAreNotOverAtOnce) {
  for (const double minutes : {1e-12, 60., 1e9, 1e300}) {
    EXPECT_EQ(train::Requests(train::Requests::Clock::now(), minutes).stops(), minutes < 1) << minutes;
  }
}

class TrainSignals : public ::testing::Test {
 protected:
  std::string path(std::string_view name) const { return fmt::format("'{}'", (folder_ / name).string()); }

  /// Ranks whose process ids are in the files pid0, pid1, ...; what they print is in the file `out`. `meanwhile` runs
  /// beside them; the code is theirs.
  Finished run_and(int ranks, const std::string& flags, const std::string& meanwhile,
                   const std::string& environment = "") {
    std::string command = kolo_train(ranks);
    const std::string program = fmt::format("'{}'", KOLO_TRAIN);
    const std::string noted =
        fmt::format("bash -c 'echo $$ >\"$0\"${{OMPI_COMM_WORLD_RANK:-0}}; exec \"$@\"' {} {}", path("pid"), program);
    command.replace(command.find(program), program.size(), noted);
    auto done = run_shell(
        folder_, fmt::format("touch {0}\n"
                             "until_in() {{ until grep -q -- \"$1\" \"$2\" 2>/dev/null; do sleep 0.02; done; }}\n"
                             "until_there() {{ until [ -e $1 ]; do sleep 0.02; done; }}\n"
                             "rm -f {5}*\n{1} {2} {3} >{0} &\nrun=$!\n{4}\nwait $run",
                             path("out"), environment, command, flags, meanwhile, path("pid")));
    done.out = read_file(folder_ / "out");
    return done;
  }
  std::string to(std::string_view signal, int rank) const {
    return fmt::format("kill -{} $(cat {})\n", signal, path(fmt::format("pid{}", rank)));
  }
  std::string until_in(const std::string& text, std::string_view name) const {
    return fmt::format("until_in '{}' {}\n", text, path(name));
  }
  /// Text that takes a tiny llama some `seconds` to evaluate.
  std::string text_of(int seconds) const {
    std::string text;
    for (int line = 0; line < 20000 * seconds; ++line) text += fmt::format("line {} of a long text\n", line);
    write_file(folder_ / "text", text);
    return path("text");
  }
  std::vector<std::string> checkpoints() const { return testing::checkpoints_in(folder_ / "c"); }

  const std::string mlp_ = "--sizes 784,24,10 --batch 300 --optimizer adamw --lr 1e-3 --seed 5 ";
  const std::string llama_ = "--model llama --preset tiny --batch 4 --seq 64 ";
  TempFolder folder_;
};

using Names = std::vector<std::string>;

TEST_F(TrainSignals, AskForCheckpoints) {
  const auto done = run_and(0, mlp_ + "--steps 10000000 --log " + path("log") + " --checkpoint " + path("c"),
                            until_in("step", "log") + to("USR1", 0) + "until_there '" +
                                (folder_ / "c/step-*").string() + "'\n" + to("TERM", 0));
  EXPECT_EQ(done.code, 0) << done.err;
  EXPECT_NE(done.out.find("stored    2 checkpoints"), done.out.npos) << done.out;
  EXPECT_NE(done.out.find("as asked; --resume goes on"), done.out.npos) << done.out;
  EXPECT_EQ(checkpoints().size(), 2u);
}

TEST_F(TrainSignals, EndARunThatHasNothingToStore) {
  const auto done = run_and(0, mlp_ + "--steps 10000000 --log " + path("log") + " --save " + path("model.safetensors"),
                            until_in("step", "log") + to("TERM", 0));
  EXPECT_EQ(done.code, 0) << done.err;
  EXPECT_NE(done.out.find("stopped   before the last step, as asked\n"), done.out.npos) << done.out;
  EXPECT_FALSE(std::filesystem::exists(folder_ / "model.safetensors"));
}

/// A pipe for the log holds the run up until somebody reads from it: before any data are read.
TEST_F(TrainSignals, OfTheStartAreRemembered) {
  const auto signalled_at_start = [&](const std::string& signals) {
    std::filesystem::remove_all(folder_ / "c");
    const std::string status = "/proc/$(cat " + path("pid0") + ")/status";
    const auto done = run_and(0, mlp_ + "--steps 3 --checkpoint " + path("c") + " --log " + path("pipe"),
                              until_in(".", "pid0") + "until_in kolo-train " + status +
                                  "\nuntil_in '^SigCgt.*[4-7c-f]...$' " + status + "  # SIGTERM\n" + signals + "cat " +
                                  path("pipe") + " >'" + (folder_ / "log").string() + "'",
                              fmt::format("rm -f {0}; mkfifo {0};", path("pipe")));
    EXPECT_EQ(done.code, 0) << done.err;
    return done.out.find("as asked; --resume goes on") != done.out.npos;
  };
  EXPECT_TRUE(signalled_at_start(to("TERM", 0) + to("TERM", 0)));
  EXPECT_EQ(checkpoints(), Names{"step-000000001"});
  EXPECT_FALSE(signalled_at_start(to("USR1", 0)));
  EXPECT_EQ(checkpoints(), (Names{"step-000000001", "step-000000003"}));
}

/// All stop behind the same step, and go on as if they had not.
TEST_F(TrainSignals, ToOneRankAreForAll) {
  const std::string flags = mlp_ + "--steps 1200 ";
  ASSERT_EQ(train(folder_, 2, flags + "--save " + path("straight.safetensors")).code, 0);
  const std::string stored = flags + "--checkpoint " + path("c") + " --save " + path("again.safetensors");
  const auto stopped = run_and(2, stored + " --log " + path("log"), until_in("step", "log") + to("TERM", 1));
  EXPECT_EQ(stopped.code, 0) << stopped.err;
  EXPECT_NE(stopped.out.find("as asked; --resume goes on"), stopped.out.npos) << stopped.out;
  EXPECT_EQ(checkpoints(), Names{fmt::format("step-{:09}", events_in(folder_ / "log", "step").size())});
  EXPECT_FALSE(std::filesystem::exists(folder_ / "again.safetensors"));
  ASSERT_EQ(train(folder_, 2, stored + " --resume").code, 0);
  EXPECT_EQ(read_file(folder_ / "again.safetensors"), read_file(folder_ / "straight.safetensors"));
}

#ifdef KOLO_SLOW_DISK
TEST_F(TrainSignals, DoNotHurtTheLastWrite) {
  const std::string term = to("TERM", 0) + to("USR1", 1) + to("TERM", 1);
  const auto done = run_and(2, mlp_ + "--steps 2 --checkpoint " + path("c"),
                            "until_there '" + (folder_ / "c/.writing-step-*").string() + "'\nsleep 0.5\n" + term + term,
                            fmt::format("LD_PRELOAD='{}' SLOW_DISK_RANK=1 SLOW_DISK_MS=2000", KOLO_SLOW_DISK));
  EXPECT_EQ(done.code, 0) << done.err;
  EXPECT_EQ(checkpoints(), Names{"step-000000002"});
}
#endif

TEST_F(TrainSignals, EndAnEvaluation) {
  const auto done = run_and(2, llama_ + "--eval-only --data " + text_of(20) + " --logits " + path("logits.safetensors"),
                            until_in("^training ", "out") + "sleep 0.5\n" + to("TERM", 1));
  EXPECT_EQ(done.code, 0) << done.err;
  EXPECT_NE(done.out.find("stopped   before the end of the evaluation, as asked\n"), done.out.npos) << done.out;
  EXPECT_EQ(done.out.find("accuracy"), done.out.npos) << done.out;
  EXPECT_FALSE(std::filesystem::exists(folder_ / "logits.safetensors"));
}

/// A rank that cannot read what it is to measure, since somebody cuts its file, ends all, and says why.
TEST_F(TrainSignals, AnErrorOfOneRankEndsAnEvaluation) {
  const std::string flags = llama_ + "--data " + text_of(20) + " --val held-out ";  // in the folder of each rank
  for (const std::string_view more : {"--eval-only", "--steps 9 --eval-every 1 --eval-batches all"}) {
    for (const char* rank : {"0", "1"}) {
      std::filesystem::create_directories(folder_ / rank);
      std::filesystem::copy_file(folder_ / "text", folder_ / rank / "held-out",
                                 std::filesystem::copy_options::overwrite_existing);
    }
    const auto start = std::chrono::steady_clock::now();
    const auto done = run_shell(
        folder_, fmt::format("cd {}\n{} {} {} : -np 1 bash -c 'cd ../1; exec \"$@\"' rank '{}' {} {} >out &\nrun=$!\n"
                             "until grep -q '^training ' out || ! kill -0 $run; do sleep 0.02; done\nsleep 1\n"
                             "truncate -s 1000 ../1/held-out\nwait $run",
                             path("0"), kolo_train(1), flags, more, KOLO_TRAIN, flags, more));
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    EXPECT_EQ(done.code, 1) << done.err;
    ASSERT_EQ(done.problems().size(), 1u) << done.err;
    EXPECT_NE(done.problems()[0].find("held-out"), std::string::npos) << done.err;
    EXPECT_LT(took.count(), 10) << "it would take a minute";
  }
}

/// All steps are done: what they have trained is written.
TEST_F(TrainSignals, EndTheLastEvaluation) {
  const std::string flags = llama_ + "--steps 2 --data " + text_of(20) + " --checkpoint " + path("c") + " --save " +
                            path("model.safetensors") + " --sample 9 --prompt 'Once upon'";
  const auto done =
      run_and(2, flags, "until_there '" + (folder_ / "c/step-000000002").string() + "'\nsleep 0.2\n" + to("TERM", 1));
  EXPECT_EQ(done.code, 0) << done.err;
  EXPECT_NE(done.out.find("stopped   before the end of the evaluation, as asked\n"), done.out.npos) << done.out;
  EXPECT_EQ(done.out.find("Once upon"), done.out.npos) << done.out;
  EXPECT_TRUE(std::filesystem::exists(folder_ / "model.safetensors"));
}

/// There is no time for all that is held out: what was measured before, for the checkpoint, is reported.
TEST_F(TrainSignals, EndTheLastEvaluationOfAll) {
  const std::string flags = llama_ + "--steps 2 --eval-every 1 --eval-batches 1 --data " + text_of(20) +
                            " --checkpoint " + path("c") + " --log " + path("log");
  const auto done =
      run_and(2, flags, "until_there '" + (folder_ / "c/step-000000002").string() + "'\nsleep 1\n" + to("TERM", 1));
  EXPECT_EQ(done.code, 0) << done.err;
  EXPECT_NE(done.out.find("stopped   before the end of the evaluation, as asked\n"), done.out.npos) << done.out;
  EXPECT_NE(done.out.find("accuracy"), done.out.npos) << done.out;
  const auto evaluations = events_in(folder_ / "log", "eval");
  ASSERT_EQ(evaluations.size(), 2u);
  EXPECT_EQ(evaluations[1]["step"], 1);
  EXPECT_EQ(evaluations[1]["batches"], 1);
}

/// Its step is measured while somebody damages the checkpoint: the loss cannot be noted there, and the run goes on.
TEST_F(TrainSignals, ADamagedManifestEndsNoEvaluation) {
  const std::string flags = llama_ + "--steps 2 --data " + text_of(2) + " --checkpoint " + path("c"),
                    manifest = "c/step-000000002/manifest.json";
  const auto done = run_and(2, flags, "until_there " + path(manifest) + "\necho damaged >" + path(manifest) + "\n");
  EXPECT_EQ(done.code, 0) << done.err;
  EXPECT_EQ(done.problems(), Names{"the checkpoint of step 2 does not say its held-out loss: manifest.json is no "
                                   "manifest (its text is damaged)"});
  EXPECT_NE(done.out.find("accuracy"), done.out.npos) << done.out;
}

TEST_F(TrainSignals, EndASample) {
  const std::string flags = llama_ + "--steps 1 --data " + text_of(1) + " --sample 1000000 --prompt 'Once upon'";
  const auto done =
      run_and(2, flags + " --save " + path("model.safetensors"),
              "until_there '" + (folder_ / "model.safetensors").string() + "'\nsleep 0.3\n" + to("TERM", 0));
  EXPECT_EQ(done.code, 0) << done.err;
  EXPECT_NE(done.out.find("stopped   before the end of the sample, as asked\n"), done.out.npos) << done.out;
  EXPECT_EQ(done.out.find("Once upon"), done.out.npos) << done.out;
}

/// A run that is killed while it evaluates has the step behind which it does.
TEST_F(TrainSignals, AStepIsStoredBeforeItIsEvaluated) {
  const std::string flags =
      llama_ + "--steps 2 --eval-every 1 --eval-batches all --data " + text_of(20) + " --checkpoint " + path("c");
  const auto killed = run_and(2, flags + " --every 1 --log " + path("log"),
                              "until_there '" + (folder_ / "c/step-000000001").string() + "'\n" + to("KILL", 0));
  EXPECT_NE(killed.code, 0);
  EXPECT_EQ(checkpoints(), Names{"step-000000001"});
  EXPECT_TRUE(events_in(folder_ / "log", "eval").empty()) << "killed too late";
}

}  // namespace
}  // namespace kolo::testing
