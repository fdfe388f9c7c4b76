// The programs of property_test.cc with all threads of all ranks under the simulation, with messages and operations
// that take virtual time, and with faults: what waits, wakes or fails wrongly is replayed from its seed.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <ctime>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

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
            Notice notice) {
  Played played;
  Config config = config_of(program);
  config.timeout_seconds = timeout;
  config.report = [&](const std::string& line) { played.reports += line + '\n'; };
  const std::chrono::nanoseconds slowest = seed % 3 == 0 ? 0ns : seed % 3 == 1 ? 20us : 1ms;
  VirtualNetwork network(seed, program.ranks, slowest, notice);
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
  const bool others_are_gone =  // of a rank that never runs again; the others have all that they can have
      (fault.kind == Fault::Kind::stop || fault.kind == Fault::Kind::kill) &&
      std::ranges::none_of(played.end.waiting, [&](int rank) { return rank >= 0 && rank != fault.rank; });
  if (fault.kind == Fault::Kind::freeze && fault.how_long > 450ms)  // the others find what it has not rung for
    std::erase_if(played.problems, [](const std::string& one) { return one.ends_with("late wake-ups"); });
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

/// Whether a rank whose operation failed by its time-out may hear nothing of that, since it submits nothing: the other
/// rank has joined. What it submits next then meets the others' next but one, or fails. So it is where one rank alone
/// submits something, which fails before it withdraws it: the others take that for their next one.
bool may_lose_count(const PropertyProgram& program) {
  return std::ranges::any_of(program.steps, [](const PropertyStep& step) {
    return std::ranges::any_of(step.ops, [](const PropertyOp& op) {
      return op.trouble == Trouble::joined_peer || op.trouble == Trouble::withdrawn;
    });
  });
}

class Simulator : public ::testing::TestWithParam<int> {
 protected:
  /// Plays this part of `count` programs with a fault of these kinds, until `judge` finds something. `timeout`: of
  /// operations that have none of their own.
  template <class Judge>
  void play_all(std::uint64_t count, const std::vector<Fault::Kind>& kinds, Checks checks, Judge&& judge,
                double timeout = 0, Notice notice = Notice::rings) {
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
      if (fault.kind == Fault::Kind::kill) {
        program.own_error = "is gone";
        std::ranges::fill(program.threads,
                          1);  // a thread ends where it cannot tell the others what it has; so does all
      }
      // The world has failed: ranks close without a word, and others may notice that before they hear in a group of
      // the failure.
      if (fault.kind >= Fault::Kind::start && fault.kind <= Fault::Kind::group) program.own_error = "is gone";
      if (fault.kind == Fault::Kind::memory) program.own_error = "there is not enough memory";
      if (fault.kind > Fault::Kind::kill && matches_by_count(program)) continue;
      if (timeout > 0 && may_lose_count(program)) continue;
      if (std::getenv("KOLO_TEST_SEED")) std::printf("%s\n%s", to_string(fault).c_str(), to_string(program).c_str());
      Played played = play(seed, program, fault, checks, timeout, notice);
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
  play_all(400, {Fault::Kind::none, Fault::Kind::late}, Checks::model, must_not_end, 0, Notice::called);
}

TEST_P(Simulator, ALibraryThatMustBeAskedIsAsked) {
  play_all(400, {Fault::Kind::none, Fault::Kind::late}, Checks::model, must_not_end, 0, Notice::polled);
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

TEST_P(Simulator, AStoppedRankIsNamed) {
  play_all(200, {Fault::Kind::stop}, Checks::agreement, [](Played& played, const Fault& fault) {
    if (!played.end.ended) return;  // it was stopped after its end
    if (played.job.exit_code != 72) played.problems.push_back("the exit code is not 72");
    if (played.reports.find("rank " + std::to_string(fault.rank)) == std::string::npos)
      played.problems.push_back("the stopped rank is not named:\n" + played.reports);
  });
}

TEST_P(Simulator, AKilledRankIsMissedByAll) {
  play_all(600, {Fault::Kind::kill}, Checks::agreement, [](Played& played, const Fault& fault) {
    if (played.reports.find("making the session has waited") == std::string::npos) return must_not_wait(played, fault);
    // It was killed before a rank of another node had met it: nobody notices that, but the watchdog names it.
    if (played.reports.find("rank " + std::to_string(fault.rank)) == std::string::npos)
      played.problems.push_back("the killed rank is not named:\n" + played.reports);
  });
}

/// Runs `program` on so many virtual ranks, each with a session.
Simulated simulate_ranks(std::uint64_t seed, int ranks, const Config& config, VirtualNetwork& network,
                         const std::function<void(Session&)>& program, const Fault& fault = {}) {
  return simulate(seed, longest, [&] {
    auto worlds = test_worlds(ranks, config);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; ++rank) {
      World& world = worlds[static_cast<std::size_t>(rank)];
      network.enter(rank, world, fault);
      starts_rank(rank);
      threads.emplace_back([&] {
        Session session(std::move(world), config);
        program(session);
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
}

/// Plays that with many seeds. Nothing may take as long as a thread sleeps that nobody wakes.
void play_ranks(std::uint64_t count, int most_ranks, Notice notice,
                const std::function<void(std::uint64_t seed, Session&)>& program) {
  for (const std::uint64_t seed : seeds(count)) {
    Config config = test_config();
    if (seed % 3 == 0) config.spin_us = 0;
    const int ranks = 2 + static_cast<int>(seed % static_cast<std::uint64_t>(most_ranks - 1));
    if (seed % 5 == 0 && ranks > 2) config.fake_nodes = "1," + std::to_string(ranks - 1);
    VirtualNetwork network(seed, ranks, 20us, notice);
    const Simulated end =
        simulate_ranks(seed, ranks, config, network, [&](Session& session) { program(seed, session); });
    ASSERT_FALSE(end.hung || end.ended) << end.threads << "replay with KOLO_TEST_SEED=" << seed;
    ASSERT_LT(end.time, 500ms) << "a thread slept for the safety wake-up; replay with KOLO_TEST_SEED=" << seed;
    ASSERT_FALSE(::testing::Test::HasFailure()) << "replay with KOLO_TEST_SEED=" << seed;
  }
}

/// Calls of two ordered groups whose nodes have only control connections in common, the same on every rank. What a call
/// yields shows which ones have met; in the end some call may fail, on any rank.
void call_in_order(Session& session, std::uint64_t seed, bool may_fail) {
  const int n = session.size(), rank = session.rank();
  std::mt19937_64 same(seed), own(seed + static_cast<std::uint64_t>(rank) + 1);
  const std::vector<int> all = session.world().info()->ranks;
  const Group groups[] = {session.new_group(all, {.order = Order::program}),
                          session.new_group(all, {.order = Order::program})};
  EXPECT_TRUE(groups[0].info()->negotiated);
  struct Call {
    std::vector<float> values;
    float expected;
    std::optional<Handle> handle{};
  };
  std::deque<Call> under_way;
  for (int call = 1; call <= 30; ++call) {
    const Group& group = groups[same() % 2];
    const auto number = static_cast<float>(call);
    under_way.push_back({std::vector<float>(3, number), number * static_cast<float>(n)});
    auto& [values, expected, handle] = under_way.back();
    const int root = call % n;
    switch (same() % 6) {
      case 0: session.barrier(group); [[fallthrough]];
      case 1: handle = session.all_reduce_async(view(values), {.group = group}); break;
      case 2: (void)session.all_reduce_async(view(values), {.group = group}); break;  // the handle dies
      case 3:
        if (rank != root) values.assign(3, 0);
        handle = session.broadcast_async(view(values), {.root = root, .group = group});
        expected = number;
        break;
      case 4: {
        const NamedTensor parts[] = {{"", view(values), view(values)}};
        handle = session.grouped_all_reduce_async(parts, {.group = group});
        break;
      }
      default: {
        std::vector<float> sent(3, number);
        const PairOptions tag{.group = group, .tag = call % 2};
        Handle send = session.send_async(view(sent), (rank + 1) % n, tag);
        session.recv(view(values), (rank + n - 1) % n, tag);
        send.wait();
        expected = number;
      }
    }
    if (own() % 4 == 0) std::this_thread::sleep_for(std::chrono::nanoseconds(own() % 100'000));
    while (under_way.size() > same() % 4) {
      Call& oldest = under_way.front();
      if (oldest.handle) oldest.handle->wait();
      if (oldest.handle || !may_fail) ASSERT_EQ(oldest.values, std::vector<float>(3, oldest.expected));
      under_way.pop_front();
    }
  }
}

TEST(Negotiated, CallsMeetByTheirNumber) {
  for (const std::uint64_t seed : seeds(400)) {
    Config config = test_config();
    if (seed % 3 == 0) config.spin_us = 0;
    const int ranks = 2 + static_cast<int>(seed % 4);
    config.fake_nodes = "1," + std::to_string(ranks - 1);
    VirtualNetwork network(seed, ranks, 20us);
    network.keep_nodes_apart();
    using Kind = Fault::Kind;
    const Fault fault =
        seed % 2 == 0
            ? Fault{}
            : draw_fault(seed, ranks,
                         {Kind::late, Kind::freeze, Kind::start, Kind::step, Kind::group, Kind::memory, Kind::leave});
    const auto run = [&](Session& session) {
      try {
        call_in_order(session, seed, fault.kind != Fault::Kind::none);
      } catch (const Error& error) {
        EXPECT_NE(fault.kind, Kind::none) << error.what();
        EXPECT_NE(error.code(), ErrorCode::mismatch) << error.what();
      }
    };
    const Simulated end = simulate_ranks(seed, ranks, config, network, run, fault);
    ASSERT_FALSE(end.hung || end.ended || ::testing::Test::HasFailure())
        << end.threads << to_string(fault) << "; replay with KOLO_TEST_SEED=" << seed;
  }
}

// Also whoever waits for a message by name, to or from it, of which the rank that leaves knows nothing.
TEST(Leaving, IsKnownByMessagesByName) {
  play_ranks(200, 4, Notice::rings, [](std::uint64_t seed, Session& session) {
    float one = 1;
    const int leaver = static_cast<int>(seed / 2) % session.size();
    if (session.rank() == leaver) return;
    if (seed % 3 == 0) std::this_thread::sleep_for(std::chrono::nanoseconds(seed * 7919 % 500'000));
    const std::string text = error_text(
        [&] {
          if (seed % 2 == 0) session.send("x", view_scalar(one), leaver);
          if (seed % 2 == 1) session.recv("x", view_scalar(one), leaver);
        },
        ErrorCode::closed);
    EXPECT_NE(text.find("rank " + std::to_string(leaver) + " closed the session"), std::string::npos) << text;
  });
}

// As above, when the last operation is still under way: whoever is through first leaves only when all are.
TEST(Leaving, KeepsNothingBackThatOthersNeed) {
  play_ranks(200, 4, Notice::called, [](std::uint64_t seed, Session& session) {
    float one = 1;
    Handle handle = session.all_reduce_async("x", view_scalar(one));
    session.barrier();  // now it is agreed, though not complete
    if (seed % 2 == 0) handle.wait();
    session.close();
    handle.wait();
    EXPECT_EQ(one, static_cast<float>(session.size()));
    EXPECT_EQ(session.stats().late_wakeups, 0U);
  });
}

TEST(Leaving, RunsWhatAllHaveAnnouncedBefore) {
  play_ranks(200, 9, Notice::rings, [](std::uint64_t, Session& session) {
    float one = 1;
    if (session.rank() == session.size() - 1) std::this_thread::sleep_for(5ms);  // the last to announce it
    Handle handle = session.all_reduce_async("x", view_scalar(one));
    if (session.rank() == session.size() - 1) session.close();
    EXPECT_NO_THROW(handle.wait());
    EXPECT_EQ(one, static_cast<float>(session.size()));
  });
}

TEST(Leaving, WaitsForAnotherThreadThatLeaves) {
  play_ranks(200, 3, Notice::rings, [](std::uint64_t, Session& session) {
    if (session.rank() == 0) std::this_thread::sleep_for(5ms);
    const auto close = [&] {
      session.close();
      EXPECT_GE(virtual_time(), 5ms) << "rank 0 has not left";
    };
    std::thread other(close);
    close();
    other.join();
  });
}

// What the others have begun in order, before or after they hear of it.
TEST(Leaving, EndsWhatTheOthersWaitForInOrder) {
  play_ranks(400, 5, Notice::rings, [](std::uint64_t seed, Session& session) {
    const Group group = session.new_group(session.world().info()->ranks, {.order = Order::program});
    float one = 1;
    session.all_reduce(view_scalar(one), {.group = group});
    const int last = session.size() - 1;
    if (session.rank() == last) {
      std::this_thread::sleep_for(std::chrono::nanoseconds(seed * 7919 % 200'000));
      return;
    }
    if (seed % 2 == 0) {
      EXPECT_THROW(session.barrier(group), Error);
    }
    EXPECT_THROW(session.all_reduce(view_scalar(one), {.group = group}), Error);
  });
}

// A thread that leaves without finishing takes the role from another that sleeps with it, or is about to; whoever could
// end that one's wait stands still.
TEST(Leaving, WaitsForNoThreadThatSleepsWithTheRole) {
  for (const std::uint64_t seed : seeds(1000)) {
    VirtualNetwork network(seed, 2, 20us);
    Config config = test_config();
    config.spin_us = 0;
    std::chrono::nanoseconds took{0};
    const Simulated end = simulate_ranks(seed, 2, config, network, [&](Session& session) {
      float one = 1, two = 2;
      const auto wait = [&] {
        const std::string name = "only on rank " + std::to_string(session.rank());
        EXPECT_THROW(session.all_reduce(name, view_scalar(one)), Error);
      };
      if (session.rank() == 0) return wait();
      std::thread other(wait);
      freeze(0, 10s);
      std::this_thread::sleep_for(std::chrono::nanoseconds(seed * 7919 % 40'000));
      const Handle handle = session.all_reduce_async("another", view_scalar(two));  // wakes that thread
      const auto start = virtual_time();
      session.abandon();
      took = virtual_time() - start;
      other.join();
    });
    ASSERT_FALSE(end.hung || end.ended) << end.threads << "replay with KOLO_TEST_SEED=" << seed;
    ASSERT_LT(took, 200ms) << "replay with KOLO_TEST_SEED=" << seed;
  }
}

// Also of ranks that have not used their pair before, and of those that need nobody but each other.
TEST(Leaving, WithoutFinishingEndsSendsAndReceivesOfTheOthers) {
  play_ranks(400, 5, Notice::rings, [](std::uint64_t seed, Session& session) {
    if (session.size() < 3) return;
    float one = 1;
    if (session.rank() == 2) {
      std::this_thread::sleep_for(std::chrono::nanoseconds(seed * 7919 % 200'000));
      return session.abandon();
    }
    if (session.rank() == 0) {
      EXPECT_THROW(session.recv("x", view_scalar(one), 1), Error);
    }
    if (session.rank() == 1) {
      EXPECT_THROW(session.barrier(), Error);
    }
    if (session.rank() < 2) {
      EXPECT_THROW(session.send("y", view_scalar(one), 1 - session.rank()), Error);
    }
  });
}

// Whatever its place in the tree, on whichever node; its pairs, too.
TEST(Killed, IsNamedOnAllOthersWithinASecond) {
  for (const std::uint64_t seed : seeds(400)) {
    const int ranks = 2 + static_cast<int>(seed % 9), victim = static_cast<int>(seed / 9) % ranks;
    Config config = test_config();
    if (seed % 4 == 0) config.spin_us = 0;
    for (int left = ranks, node = 1 + static_cast<int>(seed / 7 % 4); left > 0; left -= node)
      config.fake_nodes += (left == ranks ? "" : ",") + std::to_string(std::min(node, left));
    const Fault fault{
        .kind = Fault::Kind::kill, .rank = victim, .when = 1ms + std::chrono::nanoseconds(seed * 7919 % 3'000'000)};
    VirtualNetwork network(seed, ranks, 20us);
    int right = 0;
    const Simulated end = simulate_ranks(
        seed, ranks, config, network,
        [&](Session& session) {
          const int me = session.rank();
          const auto run = [&] {
            float one = 1;
            for (;;) {
              session.all_reduce("x", view_scalar(one));
              if (seed % 3 == 0 && me == victim) session.send("y", view_scalar(one), (me + 1) % ranks);
              if (seed % 3 == 0 && me == (victim + 1) % ranks) session.recv("y", view_scalar(one), victim);
            }
          };
          const std::string text = error_text(run, ErrorCode::aborted);
          const auto after = virtual_time() - fault.when;
          EXPECT_LT(after, 1s);
          EXPECT_NE(text.find("rank " + std::to_string(victim) + " is gone"), std::string::npos) << text;
          const auto start = virtual_time();
          session.close();
          EXPECT_LT(virtual_time() - start, 100ms);
          EXPECT_EQ(session.stats().late_wakeups, 0U);
          ++right;
        },
        fault);
    ASSERT_EQ(right, ranks - 1) << end.threads << "replay with KOLO_TEST_SEED=" << seed;
    ASSERT_FALSE(end.ended || ::testing::Test::HasFailure()) << "replay with KOLO_TEST_SEED=" << seed;
  }
}

TEST(Leaving, WithoutFinishingWaitsForAnotherThreadThatDoes) {
  play_ranks(400, 3, Notice::rings, [](std::uint64_t, Session& session) {
    if (session.rank() > 0) return session.abandon();
    float one = 1;
    Handle handle = session.all_reduce_async("x", view_scalar(one));
    const auto abandon = [&] {
      session.abandon();
      const auto sent = session.stats().control_messages_sent;
      std::this_thread::sleep_for(1ms);
      EXPECT_EQ(session.stats().control_messages_sent, sent) << "the rank acts after it has left";
    };
    std::thread other(abandon);
    abandon();
    other.join();
  });
}

// Where the world has failed it hands on nothing more; also to ranks that hear of others by it alone.
TEST(Leaving, EndsWhatTheOthersWaitForThoughTheWorldHasFailed) {
  for (const std::uint64_t seed : seeds(400)) {
    Config config = test_config();
    if (seed % 3 == 0) config.spin_us = 0;
    const int ranks = 3 + static_cast<int>(seed % 4);
    config.fake_nodes = seed % 2 == 0 ? "1," + std::to_string(ranks - 1) : "2," + std::to_string(ranks - 2);
    const Fault fault{.kind = Fault::Kind::step, .rank = static_cast<int>(seed / 3) % ranks, .call = 1};
    VirtualNetwork network(seed, ranks, 20us);
    const auto run = [&](Session& session) {
      const bool in_order = seed % 5 == 0;
      const Group group =
          session.new_group(session.world().info()->ranks, {.order = in_order ? Order::program : Order::names});
      float one = 1;
      const auto use = [&] {
        in_order ? session.barrier(group) : session.all_reduce("x", view_scalar(one), {.group = group});
      };
      use();
      EXPECT_THROW(session.all_reduce("y", view_scalar(one)), Error);
      if (session.rank() == static_cast<int>(seed / 7) % ranks) {
        std::this_thread::sleep_for(std::chrono::nanoseconds(seed * 7919 % 200'000));
        return;
      }
      EXPECT_THROW(use(), Error);
    };
    const Simulated end = simulate_ranks(seed, ranks, config, network, run, fault);
    ASSERT_FALSE(end.hung || end.ended) << end.threads << "replay with KOLO_TEST_SEED=" << seed;
    ASSERT_FALSE(::testing::Test::HasFailure()) << "replay with KOLO_TEST_SEED=" << seed;
  }
}

/// Four ranks, of which the last one is killed some time behind `when`; the programs of the others come to their end.
void play_killed(std::uint64_t count, std::chrono::nanoseconds when,
                 const std::function<void(std::uint64_t seed, Session&)>& program) {
  for (const std::uint64_t seed : seeds(count)) {
    Config config = test_config();
    if (seed % 3 == 0) config.spin_us = 0;
    config.fake_nodes = seed % 2 == 0 ? "1,1,1,1" : "1,2,1";
    const Fault fault{
        .kind = Fault::Kind::kill, .rank = 3, .when = when + std::chrono::nanoseconds(seed * 7919 % 3'000'000)};
    VirtualNetwork network(seed, 4, 20us);
    int right = 0;
    const auto run = [&](Session& session) {
      program(seed, session);
      ++right;
    };
    const Simulated end = simulate_ranks(seed, 4, config, network, run, fault);
    ASSERT_EQ(right, 3) << end.threads << "replay with KOLO_TEST_SEED=" << seed;
    ASSERT_FALSE(end.ended || ::testing::Test::HasFailure()) << "replay with KOLO_TEST_SEED=" << seed;
  }
}

// In a group that lives, though a rank of the world was killed: who waits for its message learns that it will not come.
TEST(Leaving, IsKnownByMessagesInGroupsThatOutliveTheWorld) {
  play_killed(100, 1ms, [](std::uint64_t seed, Session& session) {
    const bool abandons = seed % 5 == 0;
    std::optional<Group> pair;
    if (session.rank() == 1 || session.rank() == 2)
      pair = session.new_group(std::array{1, 2}, {.order = Order::program});
    float one = 1;
    if (pair) session.barrier(*pair);
    EXPECT_THROW(for (;;) session.all_reduce("x", view_scalar(one)), Error);
    if (session.rank() == 1) {
      std::this_thread::sleep_for(std::chrono::nanoseconds(seed * 7919 % 200'000));
      abandons ? session.abandon() : session.close();
      std::this_thread::sleep_for(10s);
    }
    if (session.rank() == 2) {
      const std::string text = error_text([&] { session.recv(view_scalar(one), 0, {.group = *pair}); },
                                          abandons ? ErrorCode::aborted : ErrorCode::closed);
      const char* const says = abandons ? "rank 1 left without finishing" : "rank 1 closed the session";
      EXPECT_NE(text.find(says), std::string::npos) << text;
      EXPECT_LT(virtual_time(), 5s);
    }
  });
}

// Also by a rank that heard of the others by one that has left since; and the world fails first.
TEST(Killed, IsKnownByMessagesInGroupsThatOutliveTheWorld) {
  play_killed(200, 5ms, [](std::uint64_t, Session& session) {
    float one = 1;
    if (session.rank() == 1) {
      std::this_thread::sleep_for(2ms);
      return session.abandon();
    }
    const Group group = session.new_group(std::array{0, 2, 3}, {.order = Order::program});
    session.barrier(group);
    EXPECT_THROW(session.barrier(), Error);
    if (session.rank() == 3) std::this_thread::sleep_for(10s);
    const auto receive = [&] { session.recv(view_scalar(one), 2, {.group = group}); };
    const std::string text = error_text(receive, ErrorCode::aborted);
    EXPECT_NE(text.find("rank 3 is gone"), std::string::npos) << text;
    EXPECT_LT(virtual_time(), 2s);
    std::this_thread::sleep_for(5s);
  });
}

// Also by a rank that leaves as soon as another has told it: it must not wait for all where the process ends.
TEST(Killed, IsCountedByWhoLeavesAtOnce) {
  play_killed(200, 1ms, [](std::uint64_t seed, Session& session) {
    float one = 1;
    EXPECT_THROW(for (;;) session.all_reduce("x", view_scalar(one)), Error);
    seed % 3 == 1 ? session.abandon() : session.close();
    EXPECT_GE(session.stats().lost_ranks, 1u);
  });
}

// ---- a fusion threshold that tunes itself ---------------------------------------------------------------------------

/// A training job of 60 steps. Of what its ranks do beside that, `calm` ones do nothing: else they poll, wait and pause
/// in the middle of a step now and then, each by itself.
struct Training {
  std::uint64_t seed;
  bool calm;

  Config config() const {
    Config config = test_config();
    config.fusion_tuning = "on";
    config.fusion_bytes = 1024;
    if (seed % 3 == 0) config.spin_us = 0;
    if (seed % 4 == 0 && ranks() > 2) config.fake_nodes = "2," + std::to_string(ranks() - 2);
    return config;
  }
  int ranks() const { return 2 + static_cast<int>(seed / 2 % 6); }

  /// Returns how many buckets each step took. Throws Error.
  std::vector<std::uint64_t> run(Session& session) const {
    std::mt19937_64 common(seed), mine(seed * 1000 + static_cast<std::uint64_t>(session.rank()));
    std::vector<std::vector<float>> gradients(6 + common() % 16);
    for (auto& gradient : gradients) gradient.resize(1 + common() % 64);
    std::vector<std::uint64_t> buckets;
    for (int step = 0; step < 60; ++step) {
      const auto before = session.stats().buckets;
      std::vector<Handle> handles;
      for (std::size_t i = 0; i < gradients.size(); ++i) {
        std::ranges::fill(gradients[i], static_cast<float>(session.rank() + step) + static_cast<float>(i));
        handles.push_back(session.all_reduce_async("gradient " + std::to_string(i), view(std::span(gradients[i]))));
        if (calm || mine() % 100 > 0) continue;
        const auto what = mine() % 3;
        if (what == 0) (void)handles.back().poll();
        if (what == 1) handles[mine() % handles.size()].wait();
        if (what == 2) std::this_thread::sleep_for(std::chrono::nanoseconds(mine() % 30'000'000));
      }
      for (Handle& handle : handles) handle.wait();
      const auto n = static_cast<float>(session.size());
      for (std::size_t i = 0; i < gradients.size(); ++i) {
        const float sum = n * (n - 1) / 2 + n * (static_cast<float>(step) + static_cast<float>(i));
        EXPECT_TRUE(std::ranges::all_of(gradients[i], [=](float one) { return one == sum; })) << i << " of " << step;
      }
      buckets.push_back(session.stats().buckets - before);
    }
    return buckets;
  }
};

TEST(Tuning, SettlesAndChangesNoResult) {
  for (const Notice notice : {Notice::rings, Notice::polled, Notice::called}) {
    for (const std::uint64_t seed : seeds(60)) {
      const Training training{seed, seed % 2 == 0};
      Fault fault = draw_fault(seed, training.ranks(), {Fault::Kind::none, Fault::Kind::late, Fault::Kind::freeze});
      fault.when = fault.when * 20;  // at any time of the steps
      VirtualNetwork network(seed, training.ranks(), seed % 5 == 0 ? 1ms : 20us, notice);
      int ended = 0;
      const auto run = [&](Session& session) {
        const auto buckets = training.run(session);
        ++ended;
        if (!training.calm) return;
        EXPECT_GT(std::set(buckets.begin() + 2, buckets.end()).size(), 1u) << "several thresholds were tried";
        EXPECT_EQ(std::set(buckets.begin() + 50, buckets.end()).size(), 1u) << "one was left after 50 steps";
      };
      const Simulated end = simulate_ranks(seed, training.ranks(), training.config(), network, run, fault);
      ASSERT_FALSE(end.hung || end.ended) << end.threads << "replay with KOLO_TEST_SEED=" << seed;
      ASSERT_EQ(ended, training.ranks());
      ASSERT_FALSE(::testing::Test::HasFailure()) << to_string(fault) << "; replay with KOLO_TEST_SEED=" << seed;
    }
  }
}

// While the threshold changes, too.
TEST(Tuning, WhatFailsOnOneRankFailsOnAll) {
  int failed_at_all = 0;
  for (const std::uint64_t seed : seeds(600)) {
    const Training training{seed, seed % 2 == 0};
    const int ranks = training.ranks();
    Fault fault =
        draw_fault(seed, ranks, {Fault::Kind::step, Fault::Kind::start, Fault::Kind::memory, Fault::Kind::kill});
    fault.call = static_cast<int>(seed * 7919 % 400);
    fault.when = std::chrono::nanoseconds(seed * 7919 % 20'000'000);
    VirtualNetwork network(seed, ranks, 20us);
    int failed = 0, ended = 0;
    const auto run = [&](Session& session) {
      try {
        (void)training.run(session);
      } catch (const Error&) {
        ++failed;
      }
      ++ended;
    };
    const Simulated end = simulate_ranks(seed, ranks, training.config(), network, run, fault);
    const bool killed = fault.kind == Fault::Kind::kill && ended == ranks - 1;
    ASSERT_TRUE(killed || (ended == ranks && !end.hung)) << to_string(fault) << '\n'
                                                         << end.threads << "replay with KOLO_TEST_SEED=" << seed;
    ASSERT_FALSE(end.ended || ::testing::Test::HasFailure())
        << to_string(fault) << "; replay with KOLO_TEST_SEED=" << seed;
    if (!killed) {
      ASSERT_TRUE(failed == 0 || failed == ranks) << to_string(fault) << "; replay with KOLO_TEST_SEED=" << seed;
    }
    failed_at_all += failed > 0 ? 1 : 0;
  }
  if (seeds(600).size() > 100) {
    EXPECT_GT(failed_at_all, 50) << "faults strike in the middle";
  }
}

// ---- groups that some of their ranks abandon
// -------------------------------------------------------------------------

/// What each rank does: in rounds, it makes three groups of the same ranks, uses them, and abandons two of them in the
/// midst of that, or is not among those that do.
struct Abandoning {
  std::uint64_t seed;
  bool faultless;  // no rank fails
  bool removes = seed / 2 % 4 != 0;

  /// What an operation has come to.
  void check(const Group& group, bool abandoned, bool must_fail, bool right, const std::string& error) const {
    const bool says_so = error.find("has abandoned it") != error.npos;
    const bool names_it = error.find("group " + group.info()->name + ": rank ") != error.npos;
    if (says_so) {
      EXPECT_TRUE(abandoned && names_it) << error;
    }
    if (error.empty()) {
      EXPECT_TRUE(right) << "in group " << group.info()->name;
      EXPECT_FALSE(must_fail) << "group " << group.info()->name << " was abandoned";
    } else if (faultless) {
      EXPECT_TRUE(says_so) << error;
    }
  }

  void run(Session& session) const {
    std::mt19937_64 all(seed), mine(seed * 100 + static_cast<std::uint64_t>(session.rank()));
    for (int round = 0; round < 3; ++round) {
      std::vector<int> members;
      for (int rank = 0; rank < session.size(); ++rank) {
        if (all() % 4 > 0) members.push_back(rank);
      }
      const bool opened = all() % 2 == 0, by_all = all() % 3 == 0;
      const auto abandons = all(), who = all();
      if (members.size() < 2) continue;
      play_round(session, members, opened, by_all, abandons, members[who % members.size()], mine);
    }
    if (!faultless) return;
    session.barrier();  // who closes its session may be missed before the end of a group is heard of
    std::this_thread::sleep_for(100ms);
    const auto sent = session.stats().control_messages_sent;
    std::this_thread::sleep_for(100ms);
    EXPECT_EQ(session.stats().control_messages_sent, sent) << "the ranks go on about a group that is gone";
    session.barrier();
  }

  void play_round(Session& session, const std::vector<int>& members, bool opened, bool by_all, std::uint64_t abandons,
                  int first, std::mt19937_64& mine) const {
    const Group named = session.new_group(members), other = session.new_group(members),
                ordered = session.new_group(members, {.order = Order::program});
    if (!named.info()->member()) return;
    const int n = static_cast<int>(members.size()), me = named.info()->rank;
    const bool i_abandon = by_all || session.rank() == first || (abandons >> session.rank() & 1) != 0;
    struct Open {
      Handle handle;
      const Group* group;
      bool must_fail;
      std::array<float, 1> value;
      float wanted;
    };
    std::vector<std::unique_ptr<Open>> open;
    bool gone = false;
    const auto add = [&](const Group& group, auto&& submit, float value, float wanted) {
      open.push_back(std::make_unique<Open>(Open{{}, &group, gone && &group != &other, {value}, wanted}));
      try {
        open.back()->handle = submit(view_scalar(open.back()->value[0]));
      } catch (const Error& error) {
        check(group, &group != &other, gone, true, error.what());
        open.pop_back();
      }
    };
    const auto pause = [&] {
      if (mine() % 2 == 0) std::this_thread::sleep_for(std::chrono::nanoseconds(mine() % (1'000ULL << mine() % 12)));
    };
    const auto use = [&](int i) {
      const std::string name = "x" + std::to_string(i % 3);
      const auto sum = static_cast<float>(n);
      pause();
      add(
          named,
          [&](const Tensor& tensor) {
            return session.all_reduce_async(name + std::to_string(i), tensor, {.group = named});
          },
          1, sum);
      add(
          ordered, [&](const Tensor& tensor) { return session.all_reduce_async(tensor, {.group = ordered}); }, 1, sum);
      add(
          other,
          [&](const Tensor& tensor) {
            return session.all_reduce_async("o" + std::to_string(i), tensor, {.group = other});
          },
          1, sum);
      const int next = (me + 1) % n, before = (me + n - 1) % n;
      pause();
      add(
          named, [&](const Tensor& tensor) { return session.send_async(name, tensor, next, {.group = named}); },
          static_cast<float>(i), static_cast<float>(i));
      add(
          named, [&](const Tensor& tensor) { return session.recv_async(name, tensor, before, {.group = named}); }, -1,
          static_cast<float>(i));
      if (!by_all) return;  // a rank does not hear that another one has abandoned what it sends by tag
      add(
          ordered, [&](const Tensor& tensor) { return session.send_async(tensor, next, {.group = ordered, .tag = i}); },
          static_cast<float>(i), static_cast<float>(i));
      add(
          ordered,
          [&](const Tensor& tensor) { return session.recv_async(tensor, before, {.group = ordered, .tag = i}); }, -1,
          static_cast<float>(i));
    };
    const auto finish = [&] {
      for (const auto& one : open) {
        std::string text;
        try {
          one->handle.wait();
        } catch (const Error& error) {
          text = error.what();
        }
        check(*one->group, one->group != &other, one->must_fail, one->value[0] == one->wanted, text);
      }
      open.clear();
    };
    const bool used = (abandons >> 32 & 3) != 0;  // else they end before anybody uses them
    if (used && opened) {
      use(0);
      if (!by_all) finish();
    }
    if (used) use(1);
    if (used) pause();
    if (i_abandon) {
      session.abandon_group(named);
      if (used) pause();
      session.abandon_group(ordered);
      gone = true;
    }
    if (used || (abandons >> 34 & 1) != 0) use(2);
    finish();
    if (removes && mine() % 4 != 0) {
      session.remove_group(named);
      session.remove_group(ordered);
    }
    if (removes && faultless) session.remove_group(other);
  }
};

TEST_P(Simulator, AnAbandonedGroupEndsOnAllItsRanks) {
  for (const std::uint64_t seed : seeds(1600)) {
    if (seed % parts != static_cast<std::uint64_t>(GetParam()) && !std::getenv("KOLO_TEST_SEED")) continue;
    const int ranks = 2 + static_cast<int>(seed / 3 % 6);
    const bool slow = seed % 4 == 0;
    Config config = test_config();
    if (seed % 3 == 0) config.spin_us = 0;
    if (seed % 5 == 0 && ranks > 2) config.fake_nodes = "1," + std::to_string(ranks - 1);
    Fault fault = draw_fault(
        seed, ranks,
        {Fault::Kind::none, Fault::Kind::late, Fault::Kind::freeze, Fault::Kind::start, Fault::Kind::step,
         Fault::Kind::group, Fault::Kind::memory, Fault::Kind::memory, Fault::Kind::memory, Fault::Kind::kill});
    fault.call = static_cast<int>(seed * 7919 % (fault.kind == Fault::Kind::memory ? 1000 : 40));
    if (fault.kind == Fault::Kind::kill)  // when all have a session
      fault.when = (slow ? 20ms : 1ms) + std::chrono::nanoseconds(seed * 7919 % 30'000'000);
    const bool faultless = fault.kind <= Fault::Kind::freeze;
    VirtualNetwork network(seed, ranks, slow ? 1ms : 20us, static_cast<Notice>(seed / 7 % 3));
    const auto run = [&](Session& session) {
      try {
        Abandoning{seed, faultless}.run(session);
      } catch (const Error& error) {
        EXPECT_FALSE(faultless) << error.what();
      }
    };
    const Simulated end = simulate_ranks(seed, ranks, config, network, run, fault);
    const bool others_end = fault.kind == Fault::Kind::kill &&
                            std::ranges::all_of(end.waiting, [&](int rank) { return rank < 0 || rank == fault.rank; });
    ASSERT_FALSE(end.ended || (end.hung && !others_end)) << to_string(fault) << '\n'
                                                         << end.threads << "replay with KOLO_TEST_SEED=" << seed;
    ASSERT_FALSE(::testing::Test::HasFailure()) << to_string(fault) << "; replay with KOLO_TEST_SEED=" << seed;
  }
}

// ---- threads that work for those which do not wait ------------------------------------------------------------------

TEST(Background, GoesOnWithWhatAThreadLeavesThatDrove) {
  for (const Notice notice : {Notice::rings, Notice::polled, Notice::called}) {
    play_ranks(500, 4, notice, [](std::uint64_t, Session& session) {
      float one = 1;
      double two = 1;  // not in one bucket
      Handle handle = session.all_reduce_async("x", view_scalar(one));
      session.all_reduce("y", view_scalar(two));
      std::this_thread::sleep_for(50ms);
      EXPECT_EQ(one, static_cast<float>(session.size())) << "nobody has looked after it";
      handle.wait();
    });
  }
}

TEST(Background, RunsWhatNobodyWaitsFor) {
  play_ranks(500, 4, Notice::rings, [](std::uint64_t seed, Session& session) {
    float one = 1;
    session.all_reduce("x", view_scalar(one));  // from now on no run of new names ends when somebody waits
    one = 1;
    if (session.rank() == static_cast<int>(seed / 7 % 4)) std::this_thread::sleep_for(5ms);  // the last to announce it
    Handle handle = session.all_reduce_async("x", view_scalar(one));
    std::this_thread::sleep_for(50ms);
    EXPECT_EQ(one, static_cast<float>(session.size())) << "nobody has looked after it";
    handle.wait();
  });
}

TEST(Background, RunsWhatHasBegunInOrderAndNobodyWaitsFor) {
  for (const Notice notice : {Notice::rings, Notice::polled}) {
    play_ranks(500, 4, notice, [](std::uint64_t seed, Session& session) {
      const Group group = session.new_group(session.world().info()->ranks, {.order = Order::program});
      float one = 1;
      session.all_reduce(view_scalar(one), {.group = group});  // it is open
      one = 1;
      std::this_thread::sleep_for(5ms);
      if (session.rank() == static_cast<int>(seed / 7 % 4)) std::this_thread::sleep_for(5ms);  // the last to begin
      Handle handle = session.all_reduce_async(view_scalar(one), {.group = group});
      std::this_thread::sleep_for(50ms);
      EXPECT_EQ(one, static_cast<float>(session.size())) << "nobody has looked after it";
      handle.wait();
    });
  }
}

TEST(Background, FailsWhatIsOverdueThoughNobodyWaits) {
  play_ranks(300, 4, Notice::rings, [](std::uint64_t seed, Session& session) {
    if (session.size() < 3) return;  // the last rank takes no part in it
    float one = 1;
    session.all_reduce("x", view_scalar(one));  // so that the second time goes by number, and nothing counts its run
    if (session.rank() == static_cast<int>(seed / 7 % 2)) {
      std::this_thread::sleep_for(std::chrono::nanoseconds(seed * 7919 % 30'000'000));  // all else is asleep
      Handle handle = session.all_reduce_async("x", view_scalar(one), {.timeout_seconds = 0.02});
      std::this_thread::sleep_for(200ms);
      EXPECT_THROW(handle.wait(), Error);
    } else if (session.rank() < 2) {
      EXPECT_THROW(session.all_reduce("x", view_scalar(one)), Error);
      EXPECT_LT(virtual_time(), 150ms) << "the other rank has found late that it is overdue";
    }
    std::this_thread::sleep_for(300ms - virtual_time());  // whoever leaves fails it, too
  });
}

// One rank stands still. Opening takes an answer of every member.
TEST(Background, FailsWhatWaitsForAFrozenRankOrForAGroupToOpen) {
  for (const std::uint64_t seed : seeds(100)) {
    VirtualNetwork network(seed, 3, 20us);
    const Config config = test_config();
    const Simulated end = simulate_ranks(seed, 3, config, network, [&](Session& session) {
      float one = 1;
      session.barrier();
      if (session.rank() == 2) {
        freeze(2, 20s);
        session.barrier();
        return;
      }
      const auto fails = [&](const std::string& name, const Group& group, auto within) {
        const auto start = virtual_time();
        const std::string text =
            error_text([&] { session.all_reduce(name, view_scalar(one), {.group = group, .timeout_seconds = 0.05}); },
                       ErrorCode::stalled);
        EXPECT_LT(virtual_time() - start, within);
        EXPECT_NE(text.find("no answer from rank 2"), std::string::npos) << text;
      };
      fails("w", session.world(), 550ms);
      fails("x", session.new_group(session.world().info()->ranks), 7s);
      session.barrier();
    });
    ASSERT_FALSE(end.hung || end.ended || ::testing::Test::HasFailure()) << end.threads << "KOLO_TEST_SEED=" << seed;
  }
}

// Also of an operation that is being completed, whose first function has not been called yet.
TEST(Functions, OfOneOperationRunInTheOrderInWhichTheyWereGiven) {
  play_ranks(1000, 4, Notice::rings, [](std::uint64_t seed, Session& session) {
    float one = 1;
    std::vector<int> order;
    Handle handle = session.all_reduce_async("x", view_scalar(one));
    for (int i = 0; i < 4; ++i) {
      handle.on_done([&order, i](const Error*) { order.push_back(i); });
      std::this_thread::sleep_for(std::chrono::nanoseconds(seed * 7919 % 30'000));
    }
    handle.wait();
    session.close();
    EXPECT_EQ(order, (std::vector{0, 1, 2, 3}));
  });
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
  const Simulated end = simulate_ranks(1, ranks, config, network, train);
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
