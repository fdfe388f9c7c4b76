// kolo-train --device cuda by its command line, on fake GPUs.

#include "tests/apps/train_testing.h"
#include "tests/apps/wide_mlp.h"

namespace kolo::testing {
namespace {

/// How kolo-train on fakes ends; `ranks` as kolo_train().
Finished train_on(const TempFolder& folder, int ranks, const std::string& flags, const std::string& environment = "") {
  std::string command = kolo_train(ranks);
  const std::string program = fmt::format("'{}'", KOLO_TRAIN);
  command.replace(command.find(program), program.size(), fmt::format("'{}'", KOLO_TRAIN_FAKE));
  return run_shell(folder, fmt::format("{} {} {}", environment, command, flags));
}

void expect_near(const std::vector<double>& a, const std::vector<double>& b, double tolerance) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], tolerance * std::abs(a[i])) << i;
}

/// Losses and norms that come a step later are those of their steps, whatever settles the run in between.
TEST(TrainDevice, FollowsTheHost) {
  for (const std::string flags :
       {"--model mlp --sizes 784,16,10 --batch 8", "--model cnn --filters 2 --dense 8 --batch 4",
        "--model mlp --sizes 784,16,10 --batch 8 --precision f16 --clip 0.3 --accumulate 2",
        "--model llama --preset tiny --batch 2 --seq 24 --precision bf16"}) {
    SCOPED_TRACE(flags);
    const TempFolder folder;
    std::string data;
    if (flags.find("llama") != flags.npos) {
      std::string text;
      for (int i = 0; i < 120; ++i) text += fmt::format("line {} of a text\n", i);
      write_file(folder / "text", text);
      data = fmt::format("--data '{}'", (folder / "text").string());
    }
    for (const std::string device : {"cpu", "cuda"}) {
      const auto done = train_on(folder, 0,
                                 fmt::format("{} {} --steps 7 --eval-every 3 --eval-batches 1 --device {} --log '{}'",
                                             flags, data, device, (folder / (device + ".jsonl")).string()));
      ASSERT_EQ(done.code, 0) << done.err;
      EXPECT_EQ(done.err.find("cannot reach"), done.err.npos) << done.err;
      EXPECT_EQ(done.out.find("planned for, on each rank's GPU") != done.out.npos, device == "cuda") << done.out;
    }
    const double tolerance = flags.find("precision") == flags.npos ? 1e-4 : 1e-2;
    expect_near(losses_in(folder / "cpu.jsonl"), losses_in(folder / "cuda.jsonl"), tolerance);
    const auto norms = [&](const char* name) {
      std::vector<double> all;
      for (const auto& event : events_in(folder / name, "step")) all.push_back(event["grad_norm"].get<double>());
      return all;
    };
    expect_near(norms("cpu.jsonl"), norms("cuda.jsonl"), 10 * tolerance);
  }
}

TEST(TrainDevice, ResumesWithTheSameBits) {
  const TempFolder folder;
  const std::string flags = "--device cuda --sizes 784,16,10 --batch 8 --optimizer adamw --clip 0.5";
  const auto run = [&](const std::string& more) {
    const auto done = train_on(folder, 0, fmt::format("{} {}", flags, more));
    ASSERT_EQ(done.code, 0) << done.err;
  };
  const auto path = [&](const char* name) { return (folder / name).string(); };
  run(fmt::format("--steps 8 --save '{}'", path("whole.safetensors")));
  run(fmt::format("--steps 4 --checkpoint '{}'", path("run")));
  run(fmt::format("--steps 8 --checkpoint '{}' --resume --save '{}'", path("run"), path("resumed.safetensors")));
  EXPECT_EQ(read_file(folder / "whole.safetensors"), read_file(folder / "resumed.safetensors"));
}

/// Ranks of processes cannot share a fake NCCL: their tensors go through host memory.
TEST(TrainDevice, RanksFollowOneRank) {
  for (const std::string model :
       {"--sizes 784,16,10", "--sizes 784,16,10 --clip 0.3", "--model cnn --sync-batch-norm --filters 2 --dense 8"}) {
    SCOPED_TRACE(model);
    const TempFolder folder;
    const auto losses = [&](int ranks, const std::string& name, const std::string& flags) {
      const std::string log = (folder / name).string();
      const std::string all = fmt::format("{} --steps 6 --optimizer adamw --log '{}' {}", model, log, flags);
      const auto done = train_on(folder, ranks, all, "KOLO_GPU_BACKEND=staged");
      EXPECT_EQ(done.code, 0) << done.err;
      return losses_in(folder / name);
    };
    const std::vector<double> host = losses(0, "host", "--batch 8");
    for (const std::string zero : {"0", "1"})
      expect_near(host, losses(2, zero, "--device cuda --batch 4 --zero " + zero), 1e-4);
  }
}

/// Nobody waits for a step in f16 either: whether it overflowed is known during the next one, and the scale is another
/// from the one after that on, wherever the run is stopped in between.
TEST(TrainDevice, ALossScaleFollowsAStepLater) {
  const TempFolder folder;
  const auto path = [&](const std::string& name) { return fmt::format("'{}'", (folder / name).string()); };
  write_wide_mlp(folder / "wide.safetensors", 100);
  const auto steps = [&](const std::string& flags) {
    const auto done = train_on(folder, 0,
                               fmt::format("--device cuda --precision f16 --optimizer adamw --batch 4 --lr 1e-6 "
                                           "--eval-every 100 --eval-batches 1 --init {} --log {} {}",
                                           path("wide.safetensors"), path("log"), flags));
    EXPECT_EQ(done.code, 0) << done.err;
    return events_in(folder / "log", "step");
  };
  const auto whole =
      steps(fmt::format("--steps 14 --save {} --checkpoint {}", path("whole.safetensors"), path("whole")));
  double now = 8192, next = 8192;
  int skipped = 0;
  for (const auto& step : whole) {
    ASSERT_EQ(step["loss_scale"], now) << step;
    const double used = std::exchange(now, next);
    const bool overflowed = step["skipped"].get<bool>();
    if (overflowed && used == now) next = now / 2;
    skipped += overflowed ? 1 : 0;
  }
  EXPECT_GT(skipped, 2);
  const auto state = nlohmann::json::parse(read_file(folder / "whole/step-000000014/state.json"));
  EXPECT_EQ(state["optimizer_steps"], 14 - skipped);
  EXPECT_EQ(whole.back()["skipped"], false);
  for (const int stopped : {1, 2, 3}) {
    const std::string checkpoint = "--checkpoint " + path(fmt::format("run{}", stopped));
    steps(fmt::format("{} --steps {}", checkpoint, stopped));
    const auto resumed =
        steps(fmt::format("{} --resume --steps 14 --save {}", checkpoint, path("resumed.safetensors")));
    ASSERT_EQ(resumed.size(), whole.size());
    for (std::size_t i = 0; i < whole.size(); ++i) {
      for (const char* name : {"loss", "grad_norm", "loss_scale", "skipped"})
        EXPECT_EQ(resumed[i][name], whole[i][name]) << name << " of step " << i << ", stopped behind " << stopped;
    }
    EXPECT_EQ(read_file(folder / "whole.safetensors"), read_file(folder / "resumed.safetensors"));
  }
}

TEST(TrainDevice, NoStepsAreSkippedForEver) {
  for (const int ranks : {0, 2}) {
    const TempFolder folder;
    write_wide_mlp(folder / "wide.safetensors", 60000);
    const auto run = [&](const std::string& flags) {
      return train_on(folder, ranks,
                      fmt::format("--device cuda --precision f16 --batch 2 --lr 1e-6 --eval-every 1000 --eval-batches "
                                  "1 --init '{}' --checkpoint '{}' {}",
                                  (folder / "wide.safetensors").string(), (folder / "run").string(), flags),
                      "KOLO_GPU_BACKEND=staged");
    };
    EXPECT_EQ(run("--steps 14").code, 0);
    const auto done = run("--steps 30 --resume");
    EXPECT_EQ(done.code, 1);
    EXPECT_NE(done.err.find("the gradients overflow f16 at step 26 with the least loss scale"), done.err.npos)
        << done.err;
  }
}

TEST(TrainDevice, ALossThatIsNotFiniteEndsTheRun) {
  const TempFolder folder;
  const auto done = train_on(folder, 0, "--device cuda --sizes 784,16,10 --batch 8 --steps 12 --lr 1e30");
  EXPECT_NE(done.code, 0);
  EXPECT_NE(done.err.find("is not finite at step"), done.err.npos) << done.err;
}

}  // namespace
}  // namespace kolo::testing
