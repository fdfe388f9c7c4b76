// Which checkpoint is the best, whatever happens to evaluations and to checkpoints.

#include "models/checkpoint/manifest.h"
#include "tests/apps/train_testing.h"

namespace kolo::testing {
namespace {

/// A training that begins with its best parameters: each step makes the weights a little smaller.
class TrainBest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto done = train(folder_, 0, model_ + "--batch 128 --steps 150 --save " + path("start.safetensors"));
    ASSERT_EQ(done.code, 0) << done.err;
  }
  std::string path(std::string_view name) const { return fmt::format("'{}'", (folder_ / name).string()); }
  std::string worse(const std::string& more, int ranks = 2) const {
    return model_ + "--optimizer adamw --lr 1e-6 --weight-decay 20000 --init " + path("start.safetensors") +
           fmt::format(" --batch {} --checkpoint {} --log {} {}", 256 / ranks, path("c"), path("log"), more);
  }
  void run(const std::string& more, int ranks = 2) {
    const auto done = train(folder_, ranks, worse(more, ranks));
    EXPECT_EQ(done.code, 0) << done.err;
  }
  std::vector<std::string> checkpoints() const { return testing::checkpoints_in(folder_ / "c"); }
  nlohmann::json state(std::string_view name) const {
    return nlohmann::json::parse(read_file(folder_ / "c" / name / "state.json"));
  }
  std::optional<models::HeldOut> held_out(std::string_view name) const {
    return models::parse_manifest(read_file(folder_ / "c" / name / "manifest.json")).held_out;
  }

  const std::string model_ = "--sizes 784,400,400,10 --seed 5 ";
  TempFolder folder_;
};

using Names = std::vector<std::string>;

/// Held out are four batches for each rank. A loss of more batches, or of other ranks' ones, is not above one of fewer.
TEST_F(TrainBest, IsTheBestOfLikeOnes) {
  run("--keep 1 --steps 4 --eval-every 1 --eval-batches 1");
  EXPECT_EQ(checkpoints(), (Names{"step-000000001", "step-000000004"})) << "these losses do not rise";
  run("--keep 1 --steps 9 --eval-every 2 --eval-batches 1 --resume");
  EXPECT_EQ(checkpoints(), (Names{"step-000000001", "step-000000009"})) << "of the same batches";
  run("--keep 1 --steps 14 --eval-every 2 --eval-batches 3 --resume");
  EXPECT_EQ(checkpoints(), (Names{"step-000000010", "step-000000014"})) << "the first of three batches";
  EXPECT_EQ(held_out("step-000000010")->of, (models::EvaluatedOn{.batches = 3, .ranks = 2, .examples = 256}));
}

/// The first evaluation finds out how many batches it is of: behind the checkpoint of its step, which is on its way to
/// the disk by then. A run that goes on from there has its number.
TEST_F(TrainBest, AStepIsStoredBeforeItsFirstBatchesAreTimed) {
  run("--steps 6 --eval-every 2 --every 2 --keep 9");
  const auto evaluations = events_in(folder_ / "log", "eval");
  EXPECT_FALSE(state("step-000000002").contains("evaluations"));
  EXPECT_TRUE(state("step-000000004").contains("evaluations"));
  run("--steps 6 --eval-every 2 --resume=2");
  const auto again = events_in(folder_ / "log", "eval");
  ASSERT_EQ(again.size(), evaluations.size());
  EXPECT_EQ(again[1], evaluations[1]);
}

/// The same where the first evaluation finds that there is time for all: later ones are of all, also with less time.
/// That there was none to compare with at the end of a run says nothing of the time.
TEST_F(TrainBest, TimeForAllBatchesIsRemembered) {
  const auto batches = [&](std::size_t i) { return events_in(folder_ / "log", "eval").at(i)["batches"].get<int>(); };
  run("--steps 61 --eval-every 60 --every 60 --keep 9");
  ASSERT_EQ(batches(0), 4) << "there was no time for all";
  run("--steps 63 --eval-every 1 --resume=60");
  for (const std::size_t i : {1u, 2u, 3u}) EXPECT_EQ(batches(i), 4);
  bool has_less_time = false;  // a slow first step leaves time for all
  for (int attempt = 0; attempt < 12 && !has_less_time; ++attempt) {
    std::filesystem::remove_all(folder_ / "c");
    run("--steps 20 --eval-every 60");
    EXPECT_EQ(batches(0), 4);
    run("--steps 22 --eval-every 1 --resume");
    has_less_time = batches(1) < 4;
  }
  EXPECT_TRUE(has_less_time);
}

/// A run that ended where another had stored more steps: its evaluation was the last one, for which nothing is timed.
TEST_F(TrainBest, AnEvaluationAtAnEarlierEndSettlesNothing) {
  run("--steps 61 --eval-every 60 --every 20 --keep 9");
  run("--steps 20 --eval-every 60 --resume=20");
  EXPECT_EQ(held_out("step-000000020")->settled_for, 0);
  run("--steps 22 --eval-every 60 --every 1 --resume");
  EXPECT_FALSE(state("step-000000021").contains("evaluations"));
  EXPECT_EQ(held_out("step-000000022")->settled_for, 0);
}

/// Whoever has written the checkpoint: an evaluation behind it says of which ranks it is.
TEST_F(TrainBest, AnEvaluationOfOtherRanksSettlesForThem) {
  run("--steps 4 --eval-every 4 --every 2 --eval-batches 3 --keep 9");
  run("--steps 3 --eval-every 2 --eval-batches all --resume=2", 1);
  EXPECT_EQ(held_out("step-000000002")->settled_for, 1);
  run("--steps 4 --eval-every 9 --every 1 --resume=2", 1);
  EXPECT_EQ(state("step-000000003").at("evaluations"), (nlohmann::json{{"batches", 0}, {"ranks", 1}}));
}

/// Manifests once did not say it: then it is so where the run went on.
TEST_F(TrainBest, OlderCheckpointsSettleAsBefore) {
  run("--steps 61 --eval-every 60 --every 60 --keep 9");
  for (const int last_step : {60, 61}) {
    const auto checkpoint = folder_ / "c/step-000000060";
    auto older = state("step-000000060");
    older["last_step"] = last_step;
    write_file(checkpoint / "state.json", older.dump());
    auto manifest = models::parse_manifest(read_file(checkpoint / "manifest.json"));
    manifest.state = models::seal_of(checkpoint / "state.json");
    manifest.held_out = models::HeldOut{0.0, {}};  // certainly the lowest
    write_file(checkpoint / "manifest.json", to_text(manifest));
    run("--steps 63 --eval-every 90 --every 1 --resume=60");
    EXPECT_EQ(state("step-000000062").contains("evaluations"), last_step == 61);
  }
}

/// Then the best is only one of those that are stored anyway.
TEST_F(TrainBest, WithoutEvalEveryNoEvaluationMakesACheckpoint) {
  run("--epochs 2 --keep 1");
  const auto evaluations = events_in(folder_ / "log", "eval");
  ASSERT_EQ(evaluations.size(), 2u);
  const int epoch = evaluations[0]["step"].get<int>() + 1;
  const auto name = [&](int epochs) { return fmt::format("step-{:09}", epochs * epoch); };
  EXPECT_EQ(checkpoints(), Names{name(2)});
  std::filesystem::remove_all(folder_ / "c");
  run(fmt::format("--epochs 3 --keep 1 --every {}", epoch));
  EXPECT_EQ(checkpoints(), (Names{name(1), name(3)})) << "the first had the lowest loss";
}

/// As on a file system that fails for a while: a link to itself stands for it, and takes the folder's name at once.
/// None of these checkpoints is better, so nothing is written meanwhile.
TEST_F(TrainBest, OneThatCannotBeSeenIsNotGone) {
  std::filesystem::create_directory(folder_ / "there");
  std::filesystem::create_symlink("there", folder_ / "c");
  const std::string flags = worse("--keep 1 --steps 600 --eval-every 1 --eval-batches 1");
  const auto done =
      run_shell(folder_, fmt::format("{0} {1} &\nrun=$!\n"
                                     "wait_until() {{ until eval \"$1\" || ! kill -0 $run; do sleep 0.01; done; }}\n"
                                     "lead_to() {{ ln -s \"$1\" {3}; mv -T {3} {2}; }}\n"
                                     "wait_until '[ -e {2}/step-000000001 ]' 2>/dev/null\nsleep 0.1\nlead_to c\n"
                                     "lines=$(($(wc -l <{4}) + 20))\nwait_until '[ $(wc -l <{4}) -gt $lines ]'\n"
                                     "lead_to there\nwait $run\n",
                                     kolo_train(2), flags, path("c"), path("link"), path("log")));
  EXPECT_EQ(done.code, 0) << done.err;
  EXPECT_TRUE(done.problems().empty()) << done.err;
  EXPECT_EQ(checkpoints(), (Names{"step-000000001", "step-000000600"}));
}

/// It may be better, or not: the best of the others is what can be had.
TEST_F(TrainBest, OneThatCannotBeReadIsPassedOver) {
  run("--keep 9 --every 1 --steps 3 --eval-every 1 --eval-batches 1");
  const auto manifest = folder_ / "c/step-000000001/manifest.json";
  std::filesystem::remove(manifest);
  std::filesystem::create_symlink("manifest.json", manifest);
  for (const std::string more :
       {"--resume=best --eval-only --steps 3", "--resume=best --keep 1 --steps 4 --eval-every 1 --eval-batches 1",
        "--resume=2 --keep 1 --steps 4 --eval-every 1 --eval-batches 1"}) {
    const auto done = train(folder_, 2, worse(more));
    EXPECT_EQ(done.code, 0) << done.err;
    ASSERT_EQ(done.problems().size(), 1u) << done.err;
    EXPECT_EQ(without(folder_, done.problems()[0]),
              "the best checkpoint that can be read is that of step 2: cannot read DIR/c/step-000000001/manifest.json "
              "(it is missing or not readable); check the path and its permissions");
    EXPECT_NE(done.out.find("resume    from step 2 of "), std::string::npos) << done.out;
  }
  EXPECT_EQ(checkpoints(), (Names{"step-000000001", "step-000000002", "step-000000004", "superseded-step-000000003",
                                  "superseded-step-000000004"}));
}

/// It would be set aside as one that is superseded, and may be the best.
TEST_F(TrainBest, ANewerOneThatCannotBeReadIsNotGoneOnBefore) {
  run("--keep 9 --every 1 --steps 3 --eval-every 1 --eval-batches 1");
  const auto manifest = folder_ / "c/step-000000002/manifest.json";
  std::filesystem::remove(manifest);
  std::filesystem::create_symlink("manifest.json", manifest);
  const std::string doubt =
      "cannot read DIR/c/step-000000002/manifest.json (it is missing or not readable); check the path and its "
      "permissions";
  const auto refused = train(folder_, 2, worse("--resume=best --steps 4"));
  EXPECT_EQ(refused.code, 1);
  ASSERT_EQ(refused.problems().size(), 1u) << refused.err;
  EXPECT_EQ(without(folder_, refused.problems()[0]),
            "the checkpoint of step 2 may be better than that of step 1, the best that can be read: " + doubt +
                ", or name one by --resume=STEP");
  EXPECT_EQ(checkpoints(), (Names{"step-000000001", "step-000000002", "step-000000003"}));
  const auto done = train(folder_, 2, worse("--resume=best --eval-only"));
  EXPECT_EQ(done.code, 0) << done.err;
  ASSERT_EQ(done.problems().size(), 1u) << done.err;
  EXPECT_EQ(without(folder_, done.problems()[0]), "the best checkpoint that can be read is that of step 1: " + doubt);
}

#ifdef KOLO_SLOW_DISK
/// While the second rank's part is on its way to a slow disk, somebody removes the first rank's: it is not complete.
TEST_F(TrainBest, OneThatCouldNotBeCompletedIsNotTheBest) {
  const std::string part = (folder_ / "c").string() + "/.writing-step-000000002-*/part-00000-of-00002.safetensors";
  const auto done =
      run_shell(folder_, fmt::format("LD_PRELOAD='{}' SLOW_DISK_RANK=1 SLOW_DISK_MS=200 {} {} &\nrun=$!\n"
                                     "until rm {} 2>/dev/null; do sleep 0.01; done\nwait $run\n",
                                     KOLO_SLOW_DISK, kolo_train(2),
                                     worse("--keep 1 --steps 150 --eval-every 2 --eval-batches all"), part));
  EXPECT_EQ(done.code, 0) << done.err;
  ASSERT_EQ(done.problems().size(), 1u) << done.err;
  EXPECT_TRUE(done.problems()[0].starts_with("the checkpoint of step 2 is lost")) << done.err;
  const auto names = checkpoints();
  ASSERT_EQ(names.size(), 2u) << "the newest, and the best of those behind step 2";
  EXPECT_EQ(names[1], "step-000000150");
  ASSERT_TRUE(held_out(names[0]));
  EXPECT_LT(held_out(names[0])->loss, events_in(folder_ / "log", "eval").back()["loss"].get<double>());
}
#endif

}  // namespace
}  // namespace kolo::testing
