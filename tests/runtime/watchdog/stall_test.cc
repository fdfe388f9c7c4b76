// Who waits for whom: what the watchdogs report, and the end of a job that waits too long. Ranks as threads.

#include <fmt/format.h>
#include <kolo/session.h>

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <latch>
#include <mutex>
#include <regex>
#include <thread>

#include "runtime/watchdog/stall_report.h"
#include "tests/support/thread_ranks.h"

namespace kolo {
namespace {

/// Collects what is reported. wait_for() returns once a line matches; a program that never says so runs into its
/// time-out.
class Reports {
 public:
  Config config() {
    Config config;
    config.stall_report_seconds = 0.2;
    config.stall_abort_seconds = 50;
    config.report = [this](const std::string& line) {
      const std::lock_guard lock(mutex_);
      lines_.push_back(line);
      changed_.notify_all();
    };
    return config;
  }

  /// Waits for this line; "#" in it stands for a time in seconds.
  void wait_for(const std::string& line) {
    std::unique_lock lock(mutex_);
    const bool found = changed_.wait_for(lock, std::chrono::seconds(30), [&] {
      return std::any_of(lines_.begin(), lines_.end(), [&](const auto& one) { return without_times(one) == line; });
    });
    std::string all;
    for (const auto& one : lines_) all += one + "\n";
    EXPECT_TRUE(found) << "nobody said\n" << line << "\nbut\n" << all;
  }

  std::ptrdiff_t count(const std::string& part) {
    const std::lock_guard lock(mutex_);
    return std::count_if(lines_.begin(), lines_.end(), [&](const auto& one) { return one.find(part) != one.npos; });
  }
  bool any(const std::string& part) { return count(part) > 0; }

 private:
  static std::string without_times(const std::string& line) {
    return std::regex_replace(line, std::regex("[0-9]+\\.[0-9] s"), "# s");
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> lines_;
};

/// Waits for lines in a thread of its own; `reported` opens once all have been reported.
struct Watch {
  Watch(Reports& reports, std::vector<std::string> lines)
      : thread([this, &reports, lines = std::move(lines)] {
          for (const std::string& line : lines) reports.wait_for(line);
          reported.count_down();
        }) {}

  std::latch reported{1};
  std::jthread thread;
};

std::string place() {
  char host[64] = {};
  gethostname(host, sizeof(host) - 1);
  return std::string("host ") + host + ", pid " + std::to_string(getpid());
}

using testing::run_ranks;

TEST(Stall, EveryRankThatTakesPartNamesTheMissingOnes) {
  Reports reports;
  const auto line = [](const std::string& rank) {
    return "rank " + rank +
           ": all_reduce 'x' in group world has waited for # s: submitted by ranks 0, 1; "
           "not submitted by rank 2 (" +
           place() + ", last completed 'before'); and 1 more wait for the same ranks";
  };
  Watch watch(reports, {line("0"), line("1")});
  run_ranks(
      3,
      [&](Session& session) {
        float before = 1, x = 1, y = 1;
        session.all_reduce("before", view_scalar(before));
        if (session.rank() == 2) watch.reported.wait();
        Handle first = session.all_reduce_async("x", view_scalar(x));
        Handle second = session.all_reduce_async("y", view_scalar(y));
        first.wait();
        second.wait();
        EXPECT_EQ(x + y, 6);
      },
      reports.config());
  EXPECT_FALSE(reports.any("rank 2: all_reduce"));
}

TEST(Stall, SeveralMissingRanksAreNamedEach) {
  Reports reports;
  Watch watch(
      reports,
      {"rank 1: broadcast 'w' in group world has waited for # s: submitted by rank 1; not submitted by rank 0 (" +
       place() + "), rank 2 (" + place() + ")"});
  run_ranks(
      3,
      [&](Session& session) {
        float w = static_cast<float>(session.rank());
        if (session.rank() != 1) watch.reported.wait();
        session.broadcast("w", view_scalar(w), {.root = 1});
        EXPECT_EQ(w, 1);
      },
      reports.config());
}

TEST(Stall, WhatRanWhileARankHadJoinedIsCountedThereToo) {
  Reports reports;
  Watch watch(
      reports,
      {"rank 0: all_reduce 'x' in group world has waited for # s: submitted by ranks 0, 2; not submitted by rank 1 (" +
       place() + ", last completed 'kolo.join.0')"});
  run_ranks(
      3,
      [&](Session& session) {
        float x = 1;
        for (int step = 0; step < 3 && session.rank() != 2; ++step) session.all_reduce("x", view_scalar(x));
        session.join();
        if (session.rank() == 1) watch.reported.wait();
        session.all_reduce("x", view_scalar(x));
      },
      reports.config());
}

/// Operations that stand still until they are let go; on rank 0 the thread that steps them stands still, too.
class StandingBackend final : public Backend {
 public:
  StandingBackend(std::latch& abort_device_work, bool blocks) : let_go_(abort_device_work), blocks_(blocks) {}
  std::string_view name() const override { return "standing"; }
  bool supports(const Signature& signature) const override { return signature.dtype == DType::i8; }
  std::unique_ptr<Operation> start(const Bucket&) override {
    struct Standing final : Operation {
      Standing(std::latch& wanted, bool block) : abort_device_work(wanted), blocks(block) {}
      bool step() override {
        if (blocks) abort_device_work.wait();
        return abort_device_work.try_wait();
      }
      bool needs_polling() const override { return true; }
      std::latch& abort_device_work;
      bool blocks;
    };
    return std::make_unique<Standing>(let_go_, blocks_);
  }
  std::unique_ptr<Backend> for_group(const GroupInfo&) override { return nullptr; }
  void abandon() noexcept override {}

 private:
  std::latch& let_go_;
  bool blocks_;
};

TEST(Stall, IsReportedAlthoughTheCoordinatorStandsStill) {
  Reports reports;
  Watch watch(
      reports,
      {"rank 0: all_reduce 'late' in group world has waited for # s: submitted by rank 0; not submitted by rank 1 (" +
           place() + ")",
       "rank 0: all_reduce 'standing' in group world has waited for # s: submitted by ranks 0, 1; running"});
  auto worlds = thread_worlds(2, reports.config());
  for (std::size_t rank = 0; rank < 2; ++rank)
    worlds[rank].prefer(std::make_unique<StandingBackend>(watch.reported, rank == 0));
  std::vector<std::thread> threads;
  for (World& world : worlds) {
    threads.emplace_back([&] {
      Session session(std::move(world), reports.config());
      std::int8_t standing = 1;
      float late = 1;
      Handle first = session.all_reduce_async("standing", view_scalar(standing));
      Handle second;
      if (session.rank() == 0) second = session.all_reduce_async("late", view_scalar(late));
      first.wait();
      if (session.rank() == 1) second = session.all_reduce_async("late", view_scalar(late));
      second.wait();
      EXPECT_EQ(late, 2);
      testing::close(session);
    });
  }
  for (auto& thread : threads) thread.join();
}

std::vector<Handle> reduce_all(Session& session, std::vector<float>& values) {
  std::vector<Handle> handles;
  for (std::size_t i = 0; i < values.size(); ++i) {
    handles.push_back(session.all_reduce_async(fmt::format("g{}", i), view_scalar(values[i])));
  }
  return handles;
}

TEST(Stall, ManyOperationsWithOneCauseAreOneReport) {
  Reports reports;
  Watch watch(
      reports,
      {"rank 0: all_reduce 'g0' in group world has waited for # s: submitted by ranks 0, 1; not submitted by rank 2 "
       "(" +
       place() + "); and 99 more wait for the same ranks"});
  run_ranks(
      3,
      [&](Session& session) {
        if (session.rank() == 2) watch.reported.wait();
        std::vector<float> values(100, 1);
        for (Handle& handle : reduce_all(session, values)) handle.wait();
        EXPECT_EQ(values, std::vector<float>(100, 3));
      },
      reports.config());
  EXPECT_LT(reports.count("rank 0: all_reduce"), 20);
}

TEST(Stall, NobodyIsAccusedBecauseItWaitsForManyThings) {
  Reports reports;
  Watch watch(
      reports,
      {"rank 0: all_reduce 'late' in group world has waited for # s: submitted by rank 0; not submitted by rank 2 (" +
       place() + "); not known of rank 1 (64 older operations wait there)"});
  std::latch submitted(1);  // by rank 1
  run_ranks(
      3,
      [&](Session& session) {
        if (session.rank() == 0) submitted.wait();
        if (session.rank() == 2) watch.reported.wait();
        std::vector<float> values(100, 1);
        std::vector<Handle> handles;
        if (session.rank() != 0) handles = reduce_all(session, values);
        float late = 1;
        Handle last = session.all_reduce_async("late", view_scalar(late));
        if (session.rank() == 1) submitted.count_down();
        if (session.rank() == 0) watch.reported.wait();
        if (session.rank() == 0) handles = reduce_all(session, values);
        for (Handle& handle : handles) handle.wait();
        last.wait();
        EXPECT_EQ(late, 3);
      },
      reports.config());
  EXPECT_FALSE(reports.any("not submitted by rank 1"));
}

TEST(Stall, NobodyIsAccusedByAnOldWord) {
  Reports reports;
  const std::string known = "rank 0: all_reduce 'b' in group world has waited for # s: submitted by rank 0; ";
  Watch watch(reports, {known + "not submitted by rank 2 (" + place() + "); not known of rank 1 (" + place() + ")"});
  std::latch stands_still(1), submitted(1);
  Config config = reports.config();
  config.report = [&, report = config.report](const std::string& line) {
    if (line.find("rank 1: all_reduce 'a'") == 0) {  // its watchdog says nothing more
      stands_still.count_down();
      watch.reported.wait();
    }
    report(line);
  };
  run_ranks(
      3,
      [&](Session& session) {
        float a = 1, b = 1;
        Handle first, second;
        if (session.rank() == 1) {
          first = session.all_reduce_async("a", view_scalar(a));
          stands_still.wait();
          second = session.all_reduce_async("b", view_scalar(b));
          submitted.count_down();
        } else if (session.rank() == 0) {
          submitted.wait();
          second = session.all_reduce_async("b", view_scalar(b));
        }
        watch.reported.wait();
        if (session.rank() != 1) first = session.all_reduce_async("a", view_scalar(a));
        if (session.rank() == 2) second = session.all_reduce_async("b", view_scalar(b));
        first.wait();
        second.wait();
        EXPECT_EQ(a + b, 6);
      },
      config);
  EXPECT_FALSE(reports.any("not submitted by rank 1"));
}

TEST(Stall, ASessionThatARankHasNotMadeYetIsReported) {
  Reports reports;
  const auto line = [](const std::string& rank) {
    return "rank " + rank + ": making the session has waited for # s: not there yet: rank 2 (" + place() + ")";
  };
  Watch watch(reports, {line("0"), line("1")});
  auto worlds = thread_worlds(3, reports.config());
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      if (rank == 2) watch.reported.wait();
      Session session(std::move(worlds[static_cast<std::size_t>(rank)]), reports.config());
      float x = 1;
      session.all_reduce("x", view_scalar(x));
      EXPECT_EQ(x, 3);
      testing::close(session);
    });
  }
  for (auto& thread : threads) thread.join();
}

TEST(Stall, NothingIsReportedWhileAllGoesOn) {
  Reports reports;
  run_ranks(
      2,
      [](Session& session) {
        const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(600);  // several times the limit
        float going = 1;
        while (going > 0) {
          float value = 1;
          session.all_reduce("x", view_scalar(value));
          going = std::chrono::steady_clock::now() < end ? 1.0f : 0.0f;
          session.all_reduce("going", view_scalar(going), {.op = ReduceOp::min});
        }
      },
      reports.config());
  EXPECT_FALSE(reports.any("'x'"));
}

/// …of anything: one operation waits for longer than that, while others come and go.
TEST(Stall, TheJobGoesOnAsLongAsAnythingMoves) {
  Config config;
  config.stall_abort_seconds = 3;
  run_ranks(
      2,
      [](Session& session) {
        float late = 1, going = 1;
        Handle handle;
        if (session.rank() == 0) handle = session.all_reduce_async("late", view_scalar(late));
        const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(6);
        while (going > 0) {
          std::this_thread::sleep_for(std::chrono::milliseconds(50));
          going = std::chrono::steady_clock::now() < end ? 1.0f : 0.0f;
          session.all_reduce("going", view_scalar(going), {.op = ReduceOp::min});
        }
        if (session.rank() == 1) handle = session.all_reduce_async("late", view_scalar(late));
        handle.wait();
        EXPECT_EQ(late, 2);
      },
      config);
}

TEST(Stall, WhatAProgramsReportThrowsEndsThere) {
  Config config;
  config.stall_report_seconds = 0.2;
  config.banner = true;
  std::latch reported(1);
  std::atomic<bool> is_first{true};
  config.report = [&](const std::string& line) {
    if (line.find("'x'") != line.npos && is_first.exchange(false)) reported.count_down();
    throw 42;
  };
  run_ranks(
      2,
      [&](Session& session) {
        float x = 1;
        if (session.rank() == 1) reported.wait();
        session.all_reduce("x", view_scalar(x));
        EXPECT_EQ(x, 2);
      },
      config);
}

TEST(StallDeathTest, TheJobEndsAfterTheSecondLimit) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        Config config;
        config.stall_report_seconds = 0.1;
        config.stall_abort_seconds = 0.5;
        run_ranks(
            2,
            [](Session& session) {
              float x = 1;
              if (session.rank() == 1) std::this_thread::sleep_for(std::chrono::seconds(60));
              session.all_reduce("x", view_scalar(x));
            },
            config);
      },
      ::testing::ExitedWithCode(72), "not submitted by rank 1 .*; ending the job .KOLO_STALL_ABORT_SECONDS=0.5.");
}

TEST(StallDeathTest, TheJobEndsIfASessionIsNeverMade) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        Config config;
        config.stall_report_seconds = 0.1;
        config.stall_abort_seconds = 0.5;
        auto worlds = thread_worlds(2, config);
        Session session(std::move(worlds[0]), config);
      },
      ::testing::ExitedWithCode(72), "not there yet: rank 1 .*; ending the job .KOLO_STALL_ABORT_SECONDS=0.5.");
}

TEST(StallReport, SaysMoreOfTheFirstRanksOnly) {
  InFlight operation{
      .kind = OpKind::all_reduce, .name = "grad", .group = std::make_shared<GroupInfo>(GroupInfo{.name = "world"})};
  Diagnosis diagnosis{.have = {0}, .missing = RankSet::range(1, 1000)};
  const auto name = [](int rank) { return fmt::format("rank {} (somewhere)", rank); };
  EXPECT_EQ(explain_stall(operation, 10.25, diagnosis, 0, name),
            "all_reduce 'grad' in group world has waited for 10.2 s: submitted by rank 0; not submitted by rank 1 "
            "(somewhere), rank 2 (somewhere), rank 3 (somewhere), rank 4 (somewhere), rank 5 (somewhere), rank 6 "
            "(somewhere), rank 7 (somewhere), rank 8 (somewhere), ranks 9-999");
}

}  // namespace
}  // namespace kolo
