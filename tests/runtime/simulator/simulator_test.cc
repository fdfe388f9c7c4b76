// The programs of property_test.cc with all threads of all ranks under the simulation, with messages and operations
// that take virtual time, and with faults: what waits, wakes or fails wrongly is replayed from its seed.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <thread>

#include "tests/runtime/property/property_player.h"
#include "tests/runtime/simulator/simulation.h"
#include "tests/runtime/simulator/virtual_world.h"
#include "tests/support/environment.h"
#include "tests/support/thread_ranks.h"

namespace kolo::testing {
namespace {

using namespace std::chrono_literals;

constexpr int parts = 4;
constexpr int most_ranks = 64;
constexpr auto longest = 200s;  // by the virtual clock

struct Played {
  Simulated end;
  JobEnd job;
  std::vector<std::string> problems;
  std::string reports;
};

Played play(std::uint64_t seed, const PropertyProgram& program, const Fault& fault, Checks checks, double timeout,
            bool must_be_called) {
  Played played;
  Config config = config_of(program);
  config.timeout_seconds = timeout;
  config.report = [&](const std::string& line) { played.reports += line + '\n'; };
  const std::chrono::nanoseconds slowest = seed % 3 == 0 ? 0ns : seed % 3 == 1 ? 20us : 1ms;
  VirtualNetwork network(seed, program.ranks, slowest, must_be_called);
  played.end = simulate(seed, longest, [&] {
    played.problems = run_program(
        program, config,
        [&](int rank, World& world) {
          network.enter(rank, world, fault);
          starts_rank(rank);
        },
        checks);
  });
  played.job = network.job_end();
  const bool others_are_gone =  // of a rank that was killed when the others had all they needed
      fault.kind == Fault::Kind::kill &&
      std::ranges::none_of(played.end.waiting, [&](int rank) { return rank >= 0 && rank != fault.rank; });
  if (played.end.hung && !others_are_gone)
    played.problems.push_back("it hangs:\n" + played.end.threads + played.reports);
  return played;
}

/// Whether messages match by how many there were before, which a failure of the group that numbers the ranks leaves
/// different on the two.
bool matches_by_count(const PropertyProgram& program) {
  return std::ranges::any_of(program.steps, [](const PropertyStep& step) {
    return std::ranges::any_of(step.ops, [](const PropertyOp& op) { return op.call == Call::send_recv; });
  });
}

/// Whether a rank whose operation failed by its time-out may hear nothing of that: it dropped the handle that says so,
/// or submits nothing, since the other rank has joined. What it submits next then meets the others' next but one, or
/// fails.
bool may_lose_count(const PropertyProgram& program) {
  return std::ranges::any_of(program.steps, [](const PropertyStep& step) {
    return std::ranges::any_of(step.ops, [](const PropertyOp& op) {
      return op.trouble == Trouble::raced || op.trouble == Trouble::joined_peer;
    });
  });
}

class Simulator : public ::testing::TestWithParam<int> {
 protected:
  /// Plays this part of `count` programs with a fault of these kinds, until `judge` finds something. `timeout`: of
  /// operations that have none of their own.
  template <class Judge>
  void play_all(std::uint64_t count, const std::vector<Fault::Kind>& kinds, Checks checks, Judge&& judge,
                double timeout = 0, bool must_be_called = false) {
    std::uint64_t programs = 0, switches = 0;
    std::chrono::nanoseconds time{0};
    for (const std::uint64_t seed : seeds(count)) {
      if (seed % parts != static_cast<std::uint64_t>(GetParam()) && !std::getenv("KOLO_TEST_SEED")) continue;
      auto program = draw_program(seed, most_ranks);
      const Fault fault = draw_fault(seed, program.ranks, kinds);
      if (fault.kind == Fault::Kind::leave) {
        program.leave = {fault.rank, fault.call};
        std::ranges::fill(program.threads, 1);         // a program does not end while other threads of it wait
        program.own_error = "left without finishing";  // who waits for that rank's marks leaves, too
      }
      if (fault.kind == Fault::Kind::memory) program.own_error = "there is not enough memory";
      if (fault.kind > Fault::Kind::kill && matches_by_count(program)) continue;
      if (timeout > 0 && may_lose_count(program)) continue;
      if (std::getenv("KOLO_TEST_SEED")) std::printf("%s\n%s", to_string(fault).c_str(), to_string(program).c_str());
      Played played = play(seed, program, fault, checks, timeout, must_be_called);
      if (std::getenv("KOLO_TEST_SEED")) std::printf("%s", played.reports.c_str());
      judge(played, fault);
      for (const std::string& problem : played.problems) ADD_FAILURE() << problem;
      if (!played.problems.empty()) FAIL() << to_string(fault) << "; replay with KOLO_TEST_SEED=" << seed;
      ++programs;
      switches += played.end.switches;
      time += played.end.time;
    }
    std::printf("%llu programs, %llu switches, %.3f virtual seconds\n", static_cast<unsigned long long>(programs),
                static_cast<unsigned long long>(switches), std::chrono::duration<double>(time).count());
  }

  static void must_not_end(Played& played, const Fault&) {
    if (played.end.ended) played.problems.push_back("a watchdog ended the job:\n" + played.reports);
  }
  static void must_not_wait(Played& played, const Fault&) {
    if (!played.reports.empty()) played.problems.push_back("a watchdog reported:\n" + played.reports);
  }
};
INSTANTIATE_TEST_SUITE_P(Part, Simulator, ::testing::Range(0, parts));

TEST_P(Simulator, EveryProgramDoesWhatTheModelDoes) {
  play_all(1000, {Fault::Kind::none, Fault::Kind::late, Fault::Kind::freeze}, Checks::model, must_not_end);
}

// A rank that has all it wants must let such a library go on, for as long as others wait; also when it leaves.
TEST_P(Simulator, ALibraryThatMustBeCalledKeepsNothingBack) {
  play_all(400, {Fault::Kind::none, Fault::Kind::late}, Checks::model, must_not_end, 0, true);
}

TEST_P(Simulator, WhatFailsOnOneRankFailsOnAll) {
  play_all(1000, {Fault::Kind::start, Fault::Kind::step, Fault::Kind::group}, Checks::agreement, must_not_end);
}

TEST_P(Simulator, MemoryThatRunsOutOnOneRankFailsOnAll) {
  play_all(600, {Fault::Kind::memory}, Checks::agreement, must_not_wait);
}

TEST_P(Simulator, WhoLeavesByAnExceptionIsMissedByAll) {
  play_all(600, {Fault::Kind::leave}, Checks::agreement, must_not_wait);
}

TEST_P(Simulator, WhatIsLateFailsOnAll) {
  play_all(1000, {Fault::Kind::late, Fault::Kind::freeze}, Checks::agreement, must_not_end, 0.05);
}

TEST_P(Simulator, AKilledRankIsNamed) {
  play_all(200, {Fault::Kind::kill}, Checks::agreement, [](Played& played, const Fault& fault) {
    if (!played.end.ended) return;  // it was killed after its end
    if (played.job.exit_code != 72) played.problems.push_back("the exit code is not 72");
    if (played.reports.find("rank " + std::to_string(fault.rank)) == std::string::npos)
      played.problems.push_back("the killed rank is not named:\n" + played.reports);
  });
}

// As above, when the last operation is still under way: whoever is through first leaves only when all are.
TEST(Leaving, KeepsNothingBackThatOthersNeed) {
  for (const std::uint64_t seed : seeds(200)) {
    const int ranks = 2 + static_cast<int>(seed % 3);
    VirtualNetwork network(seed, ranks, 20us, true);
    int right = 0;
    const Simulated end = simulate(seed, longest, [&] {
      auto worlds = test_worlds(ranks, test_config());
      std::vector<std::thread> threads;
      for (int rank = 0; rank < ranks; ++rank) {
        World& world = worlds[static_cast<std::size_t>(rank)];
        network.enter(rank, world, {});
        starts_rank(rank);
        threads.emplace_back([&, rank] {
          Session session(std::move(world), test_config());
          float one = 1;
          Handle handle = session.all_reduce_async("x", view_scalar(one));
          session.barrier();  // now it is agreed, though not complete
          if (seed % 2 == 0) handle.wait();
          session.close();
          handle.wait();
          right += one == static_cast<float>(ranks) && session.stats().late_wakeups == 0;
        });
      }
      for (std::thread& thread : threads) thread.join();
    });
    ASSERT_FALSE(end.hung || end.ended) << end.threads << "replay with KOLO_TEST_SEED=" << seed;
    ASSERT_EQ(right, ranks) << "replay with KOLO_TEST_SEED=" << seed;
    ASSERT_LT(end.time, 500ms) << "a thread slept for the safety wake-up; replay with KOLO_TEST_SEED=" << seed;
  }
}

/// Steps of a training job, with nodes of eight ranks: each rank submits its tensors and waits for all of them.
TEST(LargeJob, AThousandRanksTakeThreeStepsOfTwoHundredTensors) {
  constexpr int ranks = 1000, steps = 3;
  Config config;
  config.stall_report_seconds = 1e6;
  config.stall_abort_seconds = 0;
  for (int node = 0; node < ranks / 8; ++node) config.fake_nodes += node == 0 ? "8" : ",8";
  VirtualNetwork network(1, ranks, 20us);
  std::vector<SessionStats> stats(ranks);
  int right = 0;
  const auto train = [&](Session& session) {
    std::vector<float> gradients(200);
    for (int step = 0; step < steps; ++step) {
      std::vector<Handle> handles;
      std::ranges::fill(gradients, 1.0F);
      for (std::size_t i = 0; i < gradients.size(); ++i)
        handles.push_back(session.all_reduce_async("gradient " + std::to_string(i), view_scalar(gradients[i])));
      for (Handle& handle : handles) handle.wait();
      right += std::ranges::count(gradients, static_cast<float>(ranks)) == 200;
    }
    stats[static_cast<std::size_t>(session.rank())] = session.stats();
  };
  const std::clock_t start = std::clock();
  const Simulated end = simulate(1, 1000s, [&] {
    auto worlds = test_worlds(ranks, config);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; ++rank) {
      World& world = worlds[static_cast<std::size_t>(rank)];
      network.enter(rank, world, {});
      starts_rank(rank);
      threads.emplace_back([&] {
        Session session(std::move(world), config);
        train(session);
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
  const double took = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;  // beside other tests, too
  EXPECT_FALSE(end.hung) << end.threads;
  EXPECT_EQ(right, ranks * steps);
  std::uint64_t most_messages = 0, late = 0;
  for (const SessionStats& one : stats) {
    most_messages = std::max(most_messages, one.control_messages_sent);
    late += one.late_wakeups;
  }
  EXPECT_EQ(late, 0u);
  std::printf("%.1f s of one core, %.3f virtual seconds, at most %llu messages of a rank\n", took,
              std::chrono::duration<double>(end.time).count(), static_cast<unsigned long long>(most_messages));
  EXPECT_LE(took, 60);
}

}  // namespace
}  // namespace kolo::testing
