// Checkpoints of which each rank has a part: who writes and reads what, and what damage does.

#include "models/checkpoint/manifest.h"
#include "models/checkpoint/safetensors.h"
#include "tests/apps/train_testing.h"

namespace kolo::testing {
namespace {

class TrainCheckpoint : public ::testing::Test {
 protected:
  static constexpr const char* usual = "--sizes 784,24,10 --optimizer adamw --lr 1e-3 --seed 5 ";

  std::string path(std::string_view name) const { return fmt::format("'{}'", (folder_ / name).string()); }

  Finished run(int ranks, const std::string& flags) {
    const auto done = train(folder_, ranks, usual + flags);
    EXPECT_EQ(done.code, 0) << flags << "\n" << done.out << done.err;
    return done;
  }
  /// The only problem that the ranks print.
  std::string problem(int ranks, const std::string& flags) { return problem_in(train(folder_, ranks, usual + flags)); }
  std::string problem_in(const Finished& done) {
    EXPECT_EQ(done.code, 1) << done.out;
    const auto problems = done.problems();
    return problems.size() == 1 ? without_folder(problems.front()) : done.err;
  }
  /// Two ranks, of which the second is started by other words and with other flags.
  Finished run_apart(const std::string& flags, const std::string& words, const std::string& other_flags) {
    return run_shell(folder_, fmt::format("{} {} {} : -np 1 {} '{}' {} {}", kolo_train(1), usual, flags, words,
                                          KOLO_TRAIN, usual, other_flags));
  }
  std::string without_folder(std::string text) const { return without(folder_, std::move(text)); }
  /// Names in a folder, the lock left out.
  std::vector<std::string> names_in(std::string_view name) const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder_ / name)) {
      const auto file = entry.path().filename().string();
      if (file != ".lock") names.push_back(file);
    }
    std::ranges::sort(names);
    return names;
  }
  void copy(std::string_view from, std::string_view to) {
    std::filesystem::copy(folder_ / from, folder_ / to, std::filesystem::copy_options::recursive);
  }

  TempFolder folder_;
};

using Names = std::vector<std::string>;

TEST_F(TrainCheckpoint, RanksWriteEvenParts) {
  run(3, "--batch 200 --steps 2 --checkpoint " + path("c"));
  EXPECT_EQ(names_in("c/step-000000002"),
            (Names{"manifest.json", "part-00000-of-00003.safetensors", "part-00001-of-00003.safetensors",
                   "part-00002-of-00003.safetensors", "state.json"}));
  constexpr std::uintmax_t third = 12 * (784 * 24 + 24 + 240 + 10) / 3;
  for (const int part : {0, 1, 2}) {
    const auto bytes =
        std::filesystem::file_size(folder_ / fmt::format("c/step-000000002/part-{:05}-of-00003.safetensors", part));
    EXPECT_NEAR(static_cast<double>(bytes), third, 1500) << "beside a header";
  }
}

/// No rank ever has another one's part in memory, not even the first, which completes checkpoints and hands out values.
TEST_F(TrainCheckpoint, NoRankTakesMoreMemoryThanAnother) {
  constexpr double parameters = 784 * 6000 + 6000 * 2000, mib = 1 << 20;
  const auto spread = [&](const std::string& more) {
    const auto done = train(
        folder_, 2, "--sizes 784,6000,2000,10 --optimizer adamw --seed 5 --batch 64 --checkpoint " + path("c") + more);
    EXPECT_EQ(done.code, 0) << done.err;
    const auto begin = done.out.find("\nmemory    "), end = done.out.find(" per rank at the peak");
    if (begin == done.out.npos || end == done.out.npos) return 1e9;
    double least = 0, most = 0;
    const std::string text = done.out.substr(begin + 11, end - begin - 11);
    const int found = std::sscanf(text.c_str(), "%lf MiB to %lf MiB", &least, &most);
    EXPECT_GE(least, 5.5 * parameters * sizeof(float) / mib)
        << "values, gradients, half a state, a copy of half of all";
    return found == 2 ? most - least : 0;
  };
  const double a_sixth_of_values = parameters * sizeof(float) / mib / 6;
  EXPECT_LT(spread(" --steps 2"), a_sixth_of_values);
  EXPECT_LT(spread(" --steps 3 --resume"), a_sixth_of_values);
}

/// The same global batch on another number of ranks, and with the optimizer's state shared out or not.
TEST_F(TrainCheckpoint, AnotherNumberOfRanksIsEqualToRounding) {
  run(2, "--batch 300 --steps 12 --save " + path("straight.safetensors"));
  run(0, "--steps 0 --save " + path("start.safetensors"));
  struct Change {
    int before, after;
    std::string flags_before, flags_after;
  };
  for (const Change& change : {Change{2, 1, "--batch 300", "--batch 600"},
                               {1, 2, "--batch 600", "--batch 300 --zero 0"},
                               {3, 2, "--batch 200 --zero 0", "--batch 300 --zero 1"},
                               {2, 3, "--batch 300 --zero 1", "--batch 100 --accumulate 2 --zero 0"}}) {
    SCOPED_TRACE(fmt::format("from {} to {} ranks", change.before, change.after));
    std::filesystem::remove_all(folder_ / "c");
    const std::string to = " --checkpoint " + path("c");
    run(change.before, change.flags_before + " --steps 6" + to);
    const auto done =
        run(change.after, change.flags_after + " --steps 12 --resume --save " + path("resumed.safetensors") + to);
    EXPECT_NE(done.out.find(
                  fmt::format("\n          the number of ranks was {} and is now {}\n", change.before, change.after)),
              std::string::npos)
        << done.out;
    EXPECT_LT(apart(folder_ / "resumed.safetensors", folder_ / "straight.safetensors", folder_ / "start.safetensors"),
              1e-4);
  }
}

/// The same number of ranks: no bit differs, whichever way the state is kept.
TEST_F(TrainCheckpoint, SharedStateBecomesWholeAndBack) {
  run(2, "--batch 300 --steps 12 --save " + path("straight.safetensors"));
  for (const int zero : {0, 1}) {
    const std::string to = fmt::format(" --checkpoint {} ", path(fmt::format("c{}", zero)));
    run(2, fmt::format("--batch 300 --steps 6 --zero {}", zero) + to);
    const auto done = run(
        2,
        fmt::format("--batch 300 --steps 12 --zero {} --resume --save {}", 1 - zero, path("resumed.safetensors")) + to);
    EXPECT_NE(done.out.find(fmt::format("\n          --zero was {} and is now {}\n", zero, 1 - zero)),
              std::string::npos)
        << done.out;
    EXPECT_EQ(read_file(folder_ / "resumed.safetensors"), read_file(folder_ / "straight.safetensors"));
  }
}

TEST_F(TrainCheckpoint, EveryOtherDifferenceIsSaid) {
  run(0, "--batch 500 --steps 2 --checkpoint " + path("c"));
  const std::string again = " --batch 500 --resume --checkpoint " + path("c");
  write_file(folder_ / "config", "resume = 2\n");
  EXPECT_NE(run(0, "--steps 2 --eval-only --batch 500 --config " + path("config") + " --checkpoint " + path("c"))
                .out.find("resume    from step 2"),
            std::string::npos);
  EXPECT_EQ(run(0, "--steps 2 --eval-only" + again).out.find("was"), std::string::npos);
  const auto done =
      train(folder_, 0,
            "--sizes 784,24,10 --optimizer adamw --seed 5 --lr 5e-4 --steps 4 --warmup 3 --schedule cosine "
            "--min-lr 1e-5 --clip 2 --weight-decay 0.5 --wire bf16 --every 1 --log " +
                path("log") + again);
  const auto begin = done.out.find("resume    from step 2 of ");
  ASSERT_NE(begin, std::string::npos) << done.out << done.err;
  const auto end = done.out.find("\n", done.out.find("--clip", begin));
  EXPECT_EQ(without_folder(done.out.substr(begin, end - begin)),
            "resume    from step 2 of DIR/c\n"
            "          --steps was 2 and is now 4\n"
            "          --wire was f32 and is now bf16\n"
            "          --lr was 0.001 and is now 0.0005\n"
            "          --schedule was constant and is now cosine\n"
            "          --warmup was 0 and is now 3\n"
            "          --min-lr was none and is now 1e-05\n"
            "          --weight-decay was 0.01 and is now 0.5\n"
            "          --clip was 0 and is now 2");
}

/// Each is found by the rank that reads that part, said once, and costs one checkpoint.
TEST_F(TrainCheckpoint, DamageIsPassedOver) {
  const std::string flags = "--batch 500 --steps 6 --checkpoint ";
  run(2, flags + path("c") + " --every 3 --save " + path("six.safetensors"));
  run(3, "--batch 200 --steps 6 --checkpoint " + path("three"));
  const std::string part = "part-00001-of-00002.safetensors";
  struct Damage {
    std::string reason;
    std::function<void(const std::filesystem::path& checkpoint)> make;
  };
  const std::vector<Damage> all{
      {part + " has 1000 bytes instead of 115524",
       [&](const auto& checkpoint) { std::filesystem::resize_file(checkpoint / part, 1000); }},
      {"the CRC-32C of " + part + " is wrong",
       [&](const auto& checkpoint) {
         std::string bytes = read_file(checkpoint / part);
         bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
         write_file(checkpoint / part, bytes);
       }},
      {part + ": No such file or directory",
       [&](const auto& checkpoint) { std::filesystem::remove(checkpoint / part); }},
      {"part-00000-of-00003.safetensors: No such file or directory",
       [&](const auto& checkpoint) {
         write_file(checkpoint / "manifest.json", read_file(folder_ / "three/step-000000006/manifest.json"));
       }},
      {"1 of the numbers of 'square.layers.0.weight' in " + part + " are infinite or NaN", [&](const auto& checkpoint) {
         auto manifest = models::parse_manifest(read_file(checkpoint / "manifest.json"));
         std::string bytes = read_file(checkpoint / part);
         const auto nan = std::string_view("\0\0\xc0\x7f", 4);
         bytes.replace(bytes.size() - 39400, 4, nan);  // behind it there are 39 kB of small state and of values
         write_file(checkpoint / part, bytes);
         manifest.parts[1] = models::seal_of(checkpoint / part);
         write_file(checkpoint / "manifest.json", to_text(manifest));
       }}};
  for (std::size_t i = 0; i < all.size(); ++i) {
    SCOPED_TRACE(all[i].reason);
    const std::string name = fmt::format("damaged{}", i);
    copy("c", name);
    all[i].make(folder_ / name / "step-000000006");
    const auto done = run(2, flags + path(name) + " --resume --save " + path("again.safetensors"));
    EXPECT_EQ(done.problems(),
              Names{fmt::format("the checkpoint of step 6 is damaged ({}): going on from the one before "
                                "it; it is now called unusable-step-000000006",
                                all[i].reason)});
    EXPECT_NE(done.out.find("resume    from step 3 of "), std::string::npos) << done.out;
    EXPECT_EQ(read_file(folder_ / "again.safetensors"), read_file(folder_ / "six.safetensors"));
    EXPECT_EQ(names_in(name), (Names{"step-000000003", "step-000000006", "unusable-step-000000006"}));
  }
}

/// It is not damaged: nothing is renamed.
TEST_F(TrainCheckpoint, OtherFormatsAreLeftAlone) {
  run(0, "--batch 500 --steps 2 --checkpoint " + path("c"));
  const auto manifest = folder_ / "c/step-000000002/manifest.json";
  std::string text = read_file(manifest);
  write_file(manifest, text.replace(text.find("checkpoint 2"), 12, "checkpoint 1"));
  EXPECT_EQ(
      problem(2, "--batch 250 --steps 4 --resume --checkpoint " + path("c")),
      "cannot resume from DIR/c/step-000000002: it is a 'kolo checkpoint 1', and this version of kolo reads 'kolo "
      "checkpoint 2'; go on with the version that wrote it");
  EXPECT_EQ(names_in("c"), Names{"step-000000002"});
}

/// Nor is one that cannot be read for a while: a link to itself stands for its manifest, one to nothing for its folder.
TEST_F(TrainCheckpoint, WhatCannotBeReadIsLeftAlone) {
  const std::string flags = "--batch 500 --steps 4 --every 2 --checkpoint " + path("c");
  run(0, flags);
  const auto checkpoint = folder_ / "c/step-000000004";
  const std::string refused =
      "cannot resume from DIR/c/step-000000004: cannot read DIR/c/step-000000004/manifest.json (it is missing or not "
      "readable); check the path and its permissions";
  std::filesystem::rename(checkpoint, folder_ / "elsewhere");
  std::filesystem::create_symlink("not mounted", checkpoint);
  EXPECT_EQ(problem(0, flags + " --resume"), refused);
  std::filesystem::remove(checkpoint);
  std::filesystem::rename(folder_ / "elsewhere", checkpoint);
  std::filesystem::remove(checkpoint / "manifest.json");
  std::filesystem::create_symlink("manifest.json", checkpoint / "manifest.json");
  for (const std::string which : {"", "=4"}) EXPECT_EQ(problem(0, flags + " --resume" + which), refused);
  EXPECT_EQ(names_in("c"), (Names{"step-000000002", "step-000000004"}));
}

/// A limit of files' sizes stands for a disk that is full on one node.
TEST_F(TrainCheckpoint, ADiskThatIsFullForOneRankLosesTheCheckpointForAll) {
  run(2, "--batch 250 --steps 2 --checkpoint " + path("c"));
  const std::string flags = "--batch 250 --steps 4 --every 1 --resume --checkpoint " + path("c");
  const auto done = run_apart(flags, "bash -c 'ulimit -f 40; exec \"$0\" \"$@\"'", flags);
  EXPECT_EQ(done.code, 1) << done.out << done.err;
  const auto problems = done.problems();
  ASSERT_EQ(problems.size(), 3u) << done.err;
  for (const int step : {3, 4}) {
    const auto text = without_folder(problems[static_cast<std::size_t>(step) - 3]);
    EXPECT_TRUE(
        text.starts_with(fmt::format("the checkpoint of step {} is lost, those before it are as they were: rank "
                                     "1: cannot write DIR/c/.writing-step-{:09}",
                                     step, step)))
        << text;
    EXPECT_NE(text.find("part-00001-of-00002.safetensors (File too large)"), std::string::npos) << text;
  }
  EXPECT_TRUE(problems[2].starts_with("the last checkpoint could not be written: ")) << problems[2];
  EXPECT_EQ(names_in("c"), Names{"step-000000002"}) << "nothing is left of those that are lost";
  run(2, "--batch 250 --steps 4 --resume --checkpoint " + path("c"));
  EXPECT_EQ(names_in("c"), (Names{"step-000000002", "step-000000004"}));
}

/// Found when the run starts, not when the first checkpoint is lost.
TEST_F(TrainCheckpoint, AllRanksMustSeeOneFolder) {
  const std::string flags = "--batch 250 --steps 2 --checkpoint ";
  EXPECT_EQ(problem_in(run_apart(flags + path("c"), "", flags + path("another"))),
            "rank 1 does not see in DIR/another what rank 0 has written there; name a folder on a file system that all "
            "ranks share");
  run(2, flags + path("d"));
  std::filesystem::create_directory(folder_ / "empty");
  const std::string again = "--batch 250 --steps 4 --resume --checkpoint ";
  EXPECT_EQ(
      problem_in(run_apart(again + path("d"), "", again + path("empty"))),
      "rank 1 does not see DIR/empty/step-000000002/part-00000-of-00002.safetensors as rank 0 does; name a folder "
      "on a file system that all ranks share");
  EXPECT_EQ(names_in("d"), Names{"step-000000002"}) << "it is not damaged";
}

TEST_F(TrainCheckpoint, AllRanksMustBeAbleToWrite) {
  std::filesystem::create_directory(folder_ / "c");
  const std::string read_only = fmt::format("mount --bind {0} {0} && mount -o remount,bind,ro {0}", path("c"));
  if (std::system(fmt::format("unshare -m bash -c \"{}\" 2>/dev/null", read_only).c_str()) != 0)
    GTEST_SKIP() << "a folder can be made read-only for one rank by root only";
  const std::string flags = "--batch 250 --steps 2 --checkpoint " + path("c");
  const auto done =
      run_apart(flags, fmt::format("unshare -m bash -c \"{}; exec \\\"\\$0\\\" \\\"\\$@\\\"\"", read_only), flags);
  const std::string text = problem_in(done);
  EXPECT_TRUE(text.starts_with("cannot write DIR/c/.writing-")) << text;
  EXPECT_NE(text.find("Read-only file system"), std::string::npos) << text;
}

/// The losses of these rates rise again.
TEST_F(TrainCheckpoint, TheBestIsKept) {
  const std::string flags =
      "--batch 250 --optimizer adamw --warmup 20 --eval-every 2 --eval-batches all --keep 1 --checkpoint " + path("c");
  const auto train_two = [&](const std::string& more) {
    const auto done = train(folder_, 2, fmt::format("--sizes 784,24,10 --seed 5 --lr 1 {} {}", flags, more));
    EXPECT_EQ(done.code, 0) << done.out << done.err;
    return done;
  };
  const auto evaluations = [&](std::string_view log) {
    std::vector<std::pair<int, double>> all;
    for (const auto& event : events_in(folder_ / log, "eval"))
      all.emplace_back(event["step"].get<int>() + 1, event["loss"].get<double>());
    return all;
  };
  train_two("--steps 20 --log " + path("log") + " --save " + path("straight.safetensors"));
  const auto losses = evaluations("log");
  const auto best = std::ranges::min(losses, {}, &std::pair<int, double>::second);
  ASSERT_LT(best.first, 16) << "of steps " << losses.size() << ": choose other rates";
  const std::string name = fmt::format("step-{:09}", best.first);
  EXPECT_EQ(names_in("c").front(), name);
  EXPECT_EQ(names_in("c").size(), 2u) << "the newest, and the best beside it";
  const auto manifest = models::parse_manifest(read_file(folder_ / "c" / name / "manifest.json"));
  ASSERT_TRUE(manifest.held_out);
  EXPECT_EQ(manifest.held_out->loss, best.second);

  const auto measure = [&](const std::string& which, std::string_view log) {
    train_two(fmt::format("--eval-only --resume={} --steps 20 --log {} --save {}", which, path(log),
                          path("measured.safetensors")));
    return evaluations(log);
  };
  EXPECT_EQ(measure("best", "log1"), (std::vector{best}));
  const std::string of_best = read_file(folder_ / "measured.safetensors");
  EXPECT_EQ(measure("20", "log2"), (std::vector{losses.back()}));
  EXPECT_EQ(read_file(folder_ / "measured.safetensors"), read_file(folder_ / "straight.safetensors"));
  EXPECT_NE(of_best, read_file(folder_ / "measured.safetensors"));

  const auto done = train_two("--steps 20 --resume=best --save " + path("again.safetensors"));
  EXPECT_NE(done.out.find(fmt::format("resume    from step {} of ", best.first)), std::string::npos) << done.out;
  EXPECT_NE(done.out.find("\n          a newer checkpoint is now called superseded-step-000000020\n"),
            std::string::npos)
      << done.out;
  EXPECT_EQ(read_file(folder_ / "again.safetensors"), read_file(folder_ / "straight.safetensors"));
  EXPECT_EQ(names_in("c"), (Names{name, "step-000000020", "superseded-step-000000020"}));
}

TEST_F(TrainCheckpoint, OneThatIsAskedForMustBeThereAndSound) {
  const std::string flags = "--batch 500 --steps 6 --checkpoint " + path("c");
  run(0, flags + " --every 3");
  EXPECT_EQ(problem(2, "--batch 250 --steps 6 --resume=4 --checkpoint " + path("c")),
            "DIR/c has no checkpoint of step 4; it has those of 6, 3");
  std::string text = read_file(folder_ / "c/step-000000003/manifest.json");
  write_file(folder_ / "c/step-000000003/manifest.json", text.substr(0, 100));
  EXPECT_EQ(problem(0, flags + " --resume=3"),
            "the checkpoint of step 3 is damaged (manifest.json is no manifest (its text is damaged)); name another by "
            "--resume=STEP, or give --resume for the newest that is sound");
  EXPECT_EQ(names_in("c"), (Names{"step-000000003", "step-000000006"}));
  EXPECT_EQ(problem(0, flags + " --resume=last"),
            "--resume is 'last'; it takes best, the number of steps of a checkpoint, yes or no");
  run(0, "--batch 500 --steps 1 --eval-every 9 --checkpoint " + path("d"));
  std::filesystem::remove_all(folder_ / "d/step-000000001");
  EXPECT_EQ(problem(0, "--batch 500 --steps 6 --resume=best --checkpoint " + path("d")),
            "no checkpoint in DIR/d says a held-out loss; train with --eval-every, or give --resume without best");
}

#ifdef KOLO_SLOW_DISK
/// Training waits for a disk that is slower than its checkpoints come, and no rank looks as if it had stalled. During
/// many steps one rank's part is on disk and the other's is not: none is complete before all are.
TEST_F(TrainCheckpoint, ASlowDiskIsNoStall) {
  const auto run_with = [&](int rank, const std::string& flags) {
    const auto done =
        train(folder_, 2, usual + flags,
              fmt::format("KOLO_STALL_REPORT_SECONDS=2 LD_PRELOAD='{}' SLOW_DISK_RANK={} SLOW_DISK_MS=3500",
                          KOLO_SLOW_DISK, rank));
    EXPECT_EQ(done.code, 0) << done.err;
    return done;
  };
  const auto done = run_with(1, "--batch 250 --steps 300 --every 100 --keep 9 --checkpoint " + path("c"));
  EXPECT_EQ(done.err, "");
  const auto at = done.out.find(" s in all for a slow disk\n");
  ASSERT_NE(at, std::string::npos) << done.out;
  EXPECT_GE(std::stod(done.out.substr(done.out.rfind(' ', at - 1), at)), 2) << done.out;
  EXPECT_EQ(names_in("c"), (Names{"step-000000100", "step-000000200", "step-000000300"}));
}
#endif

/// An end that all agree on does not lose what was taken before.
TEST_F(TrainCheckpoint, ARunThatDivergesKeepsWhatCameBefore) {
  const auto done = train(folder_, 2,
                          "--sizes 784,24,10 --seed 5 --optimizer sgd --lr 3e8 --batch 250 --steps 2000 --every 1 "
                          "--keep 100 --checkpoint " +
                              path("c") + " --log " + path("log"));
  EXPECT_EQ(done.code, 1);
  EXPECT_NE(done.err.find("diverged"), std::string::npos) << done.err;
  const auto names = names_in("c");
  ASSERT_FALSE(names.empty());
  const auto last = events_in(folder_ / "log", "step").back()["step"].get<int>();
  EXPECT_EQ(names.back(), fmt::format("step-{:09}", last + 1));
}

}  // namespace
}  // namespace kolo::testing
