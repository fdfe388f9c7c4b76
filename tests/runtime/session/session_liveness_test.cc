// What must not hang, or be lost: threads that sleep, close and leave beside each other, errors half-way, groups and
// pairs of ranks that are gone.

#include <kolo/session.h>

#include <array>
#include <atomic>
#include <chrono>
#include <latch>
#include <random>
#include <stdexcept>
#include <thread>
#include <vector>

#include "tests/support/thread_ranks.h"

namespace kolo {
namespace {

using namespace std::chrono_literals;
using testing::error_text;
using testing::run_ranks;
using testing::test_config;

/// Plays ranks whose programs may end by an exception.
void run_until_thrown(int ranks, const std::function<void(Session&)>& program) {
  auto worlds = thread_worlds(ranks, test_config());
  std::vector<std::thread> threads;
  for (World& world : worlds) {
    threads.emplace_back([&] {
      try {
        Session session(std::move(world), test_config());
        program(session);
        testing::close(session);
      } catch (const std::runtime_error&) {
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Peers have done their part before, so nobody rings: who submits looks until there is nothing more to do, or wakes
// another thread.
TEST(Liveness, WhatBeginsLastInOrderEndsThoughNobodyWaits) {
  for (const char* backend : {"local", "shm"}) {
    Config config = test_config();
    config.backend = backend;
    run_ranks(
        2,
        [](Session& session) {
          const Group group = session.new_group(session.world().info()->ranks, {.order = Order::program});
          for (const std::size_t count : {std::size_t{1}, std::size_t{1000}, std::size_t{1 << 20}}) {
            std::vector<float> values(count, 1);
            session.all_reduce(view(values), {.group = group});  // the group is open, the ring has grown
            auto best = std::chrono::nanoseconds::max();         // of several: a busy machine may be as slow once
            for (int round = 0; round < 3; ++round) {
              if (session.rank() == 1) std::this_thread::sleep_for(50ms);
              std::atomic<bool> done{false};
              const auto start = std::chrono::steady_clock::now();
              std::chrono::nanoseconds took{0};
              Handle handle = session.all_reduce_async(view(values), {.group = group});
              handle.on_done([&](const Error*) {
                took = std::chrono::steady_clock::now() - start;
                done = true;
              });
              while (!done) std::this_thread::sleep_for(1ms);
              best = std::min(best, took);
              handle.wait();
            }
            EXPECT_LT(best, 800ms) << count << " values: found by the safety wake-up";
            EXPECT_EQ(values.back(), 16.0F);
          }
          EXPECT_EQ(session.stats().late_wakeups, 0U);
        },
        config);
  }
}

TEST(Liveness, AThreadThatSleepsWithTheRoleDoesNotKeepAnotherFromLeaving) {
  std::chrono::nanoseconds took{0};  // of several: a sleeper that nobody wakes looks after a second at most
  for (int round = 0; round < 5; ++round) {
    std::latch left(1);
    run_ranks(2, [&](Session& session) {
      float one = 1;
      if (session.rank() == 0) {
        std::thread sleeper([&] {
          EXPECT_NE(error_text([&] { session.all_reduce("never", view_scalar(one)); }, ErrorCode::closed), "");
        });
        std::this_thread::sleep_for(200ms);  // it has gone to sleep
        const auto start = std::chrono::steady_clock::now();
        session.abandon();
        took += std::chrono::steady_clock::now() - start;
        sleeper.join();
        left.count_down();
      } else {
        left.wait();
      }
    });
  }
  EXPECT_LT(took, 2s);
}

TEST(Liveness, AMonitoredBarrierDoesNotWaitForAThreadThatSleeps) {
  run_ranks(2, [&](Session& session) {
    float one = 1;
    std::thread sleeper;
    if (session.rank() == 0) {
      sleeper = std::thread([&] { session.all_reduce("late", view_scalar(one)); });
      std::this_thread::sleep_for(100ms);
      EXPECT_NE(error_text([&] { session.monitored_barrier(0.2); }, ErrorCode::stalled), "");
    } else {
      std::this_thread::sleep_for(1s);
      EXPECT_NE(error_text([&] { session.monitored_barrier(0.2); }, ErrorCode::stalled), "");
      session.all_reduce("late", view_scalar(one));
    }
    if (sleeper.joinable()) sleeper.join();
    EXPECT_EQ(one, 2);
  });
}

TEST(Liveness, TheSecondCloseReturnsAfterTheFirst) {
  std::atomic<bool> others_closed{false};
  run_ranks(2, [&](Session& session) {
    if (session.rank() == 1) {
      std::this_thread::sleep_for(300ms);
      others_closed = true;
      return session.close();
    }
    std::thread first([&] { session.close(); });
    std::this_thread::sleep_for(100ms);
    session.close();
    EXPECT_TRUE(others_closed) << "every rank has left when close() returns";
    first.join();
  });
}

TEST(Liveness, SendingToARankThatLeftByExceptionFails) {
  for (const bool known_before : {false, true}) {
    run_until_thrown(3, [&](Session& session) {
      float value = 1;
      if (known_before && session.rank() == 0) session.send("before", view_scalar(value), 1);
      if (known_before && session.rank() == 1) session.recv("before", view_scalar(value), 0);
      session.barrier();
      if (session.rank() == 1) throw std::runtime_error("the program fails");
      const std::string expected =
          "group world: rank 1 left without finishing (an error ended its program); see what that rank printed";
      EXPECT_EQ(error_text([&] { session.barrier(); }, ErrorCode::aborted), expected);
      EXPECT_EQ(error_text([&] { session.send("after", view_scalar(value), 1); }, ErrorCode::aborted), expected);
      EXPECT_EQ(error_text([&] { session.recv("back", view_scalar(value), 1); }, ErrorCode::aborted), expected);
    });
  }
}

TEST(Liveness, SendingInAGroupThatWasRemovedFails) {
  run_ranks(2, [&](Session& session) {
    const std::vector<int> both{0, 1};
    const Group group = session.new_group(both);
    session.remove_group(group);
    float value = 1;
    EXPECT_EQ(error_text([&] { session.send("x", view_scalar(value), 1 - session.rank(), {.group = group}); },
                         ErrorCode::closed)
                  .substr(0, 9),
              "send/recv");
  });
}

/// Two sessions of the same ranks, each with a group of the same number.
void run_two_sessions(int ranks, const std::function<void(Session&, Session&)>& program) {
  auto worlds = thread_worlds(ranks, test_config());
  run_ranks(ranks, [&](Session& first) {
    Session second(std::move(worlds[static_cast<std::size_t>(first.rank())]), test_config());
    program(first, second);
    testing::close(second);
  });
}

TEST(Liveness, AGroupOfAnotherSessionIsRefused) {
  run_two_sessions(2, [](Session& session, Session& other) {
    const std::vector<int> both{0, 1};
    const Group own = session.new_group(both), foreign = other.new_group(both);
    ASSERT_EQ(own.info()->id, foreign.info()->id);
    std::vector<float> values(2, 1), more(4);
    const auto expect_refused = [&](const auto& call) {
      const std::string text = error_text(call, ErrorCode::invalid_argument);
      EXPECT_NE(text.find(" belongs to another session; use one that this session has made"), text.npos) << text;
    };
    for (const Group& group : {foreign, other.world(), other.split(-1)}) {
      const std::vector<NamedTensor> tensors{{"part", view(values), view(values)}};
      const int peer = 1 - session.rank();
      expect_refused([&] { session.all_reduce("x", view(values), {.group = group}); });
      expect_refused([&] { session.broadcast("x", view(values), {.group = group}); });
      expect_refused([&] { session.reduce("x", view(values), {.group = group}); });
      expect_refused([&] { session.all_gather("x", view(values), view(more), {.group = group}); });
      expect_refused([&] { session.reduce_scatter("x", view(more), view(values), {.group = group}); });
      expect_refused([&] { session.all_to_all("x", view(values), view(values), {.group = group}); });
      expect_refused([&] { session.gather("x", view(values), view(more), {.group = group}); });
      expect_refused([&] { session.scatter("x", view(more), view(values), {.group = group}); });
      expect_refused([&] { session.send("x", view(values), peer, {.group = group}); });
      expect_refused([&] { session.recv("x", view(values), peer, {.group = group}); });
      expect_refused([&] { (void)session.grouped_all_reduce_async("y", tensors, {.group = group}); });
      expect_refused([&] { (void)session.broadcast_object("x", "bytes", {.group = group}); });
      expect_refused([&] { (void)session.all_gather_object("x", "bytes", group); });
      if (session.rank() == 0) expect_refused([&] { session.barrier(group); });  // takes no number of this session's
      expect_refused([&] { session.monitored_barrier(1, group); });
      if (session.rank() == 0) expect_refused([&] { session.join(group); });
      expect_refused([&] { session.remove_group(group); });
    }
    session.barrier();
    session.barrier(own);
    session.all_reduce("x", view(values), {.group = own});
    EXPECT_EQ(values, std::vector<float>(2, 2));
    session.remove_group(own);
  });
}

TEST(Liveness, SessionsThatThreadsEndInDifferentOrdersDoNotWaitForEachOther) {
  run_two_sessions(2, [](Session& session, Session& other) {
    Session& first = session.rank() == 0 ? session : other;
    std::jthread later([&] {
      std::this_thread::sleep_for(20ms);
      (session.rank() == 0 ? other : session).close();
    });
    first.close();
  });
}

TEST(Liveness, WhatIsSubmittedWhileItsGroupIsRemovedRunsOrIsAnError) {
  run_ranks(2, [](Session& session) {
    for (int round = 0; round < 40; ++round) {
      const std::vector<int> both{0, 1};
      const Group group = session.new_group(both);
      std::atomic<bool> removed{false};
      std::thread other([&] {
        for (float one = 1; !removed;) {
          std::this_thread::sleep_for(std::chrono::microseconds(50 + round % 10 * 50));
          try {
            if (round % 2 == 0) session.all_reduce("x", view_scalar(one), {.group = group});
            if (round % 2 != 0 && session.rank() == 0) session.send("x", view_scalar(one), 1, {.group = group});
            if (round % 2 != 0 && session.rank() == 1) session.recv("x", view_scalar(one), 0, {.group = group});
          } catch (const Error& error) {
            EXPECT_EQ(to_string(error.code()), "closed") << error.what();
          }
        }
      });
      while (!removed) {
        try {
          session.remove_group(group);
          removed = true;
        } catch (const Error& error) {
          EXPECT_EQ(to_string(error.code()), "invalid_argument") << error.what();
        }
      }
      other.join();
    }
  });
}

TEST(Liveness, WhatAProgramsFunctionThrowsIsItsOperationsError) {
  run_ranks(2, [&](Session& session) {
    float value = 1;
    AllGatherOptions options;
    if (session.rank() == 1) options.allocate = [](const Shape&) -> Tensor { throw 5; };
    std::vector<float> all(2);
    const Tensor in{&value, Shape{1}, DType::f32, {}};
    const Tensor out = session.rank() == 1 ? Tensor{} : view(all);
    EXPECT_EQ(error_text([&] { session.all_gather("x", in, out, options); }, ErrorCode::backend),
              "all_gather 'x' in group world: rank 1: the output f32[2] could not be allocated on rank 1 (it threw "
              "something that is no exception of the standard library); free memory there, or pass an output");
    session.barrier();
  });
}

// After a wait the background thread looks again by itself, soon, and others do not ring until it has.
TEST(Liveness, WhatComesJustAfterAWaitIsHeard) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(seed);
  run_ranks(3, [&](Session& session) {
    std::mt19937 random(seed + static_cast<unsigned>(session.rank()));
    float waited = 1, unwaited = 1;
    int slow = 0;
    for (int round = 0; round < 200; ++round) {
      for (int i = 0; i < 5; ++i) session.all_reduce("waited", view_scalar(waited), {.op = ReduceOp::max});
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 200));
      const auto start = std::chrono::steady_clock::now();
      Handle handle = session.all_reduce_async("unwaited", view_scalar(unwaited), {.op = ReduceOp::max});
      std::atomic<bool> done{false};
      handle.on_done([&](const Error*) { done = true; });
      while (!done) std::this_thread::sleep_for(100us);
      if (std::chrono::steady_clock::now() - start > 500ms) ++slow;  // found by the safety wake-up
      handle.wait();
    }
    EXPECT_LE(slow, 2) << "of 200";  // a busy machine may be as slow
    EXPECT_EQ(session.stats().late_wakeups, 0U);
  });
}

// What it waits for is complete at once, so it need not hear anybody for that.
TEST(Liveness, WhoIsBusyWithAGroupOfItsOwnHearsTheOthers) {
  std::atomic<int> busy{2};
  run_ranks(3, [&](Session& session) {
    float value = 1;
    if (session.rank() == 0) {
      const Group alone = session.new_group(std::array{0}, {.order = Order::program});
      while (busy > 0) {  // so often that the background thread leaves everything to it
        session.all_reduce(view_scalar(value), {.group = alone});
        std::this_thread::sleep_for(200us);
      }
    } else {
      const auto start = std::chrono::steady_clock::now();
      const Group others = session.new_group(std::array{1, 2}, {.order = Order::program});
      session.all_reduce(view_scalar(value), {.group = others});
      const auto opened = std::chrono::steady_clock::now();
      EXPECT_LT(opened - start, 2s);
      const AllReduceOptions options{.timeout_seconds = 0.3};
      EXPECT_NE(error_text([&] { session.all_reduce("x", view_scalar(value), options); }, ErrorCode::stalled), "");
      EXPECT_LT(std::chrono::steady_clock::now() - opened, 2s);
      --busy;
    }
    session.barrier();
  });
}

TEST(Liveness, NoWakeUpIsLate) {
  run_ranks(3, [&](Session& session) {
    float value = 1;
    for (int i = 0; i < 3; ++i) {
      Handle handle = session.all_reduce_async("x", view_scalar(value));
      std::this_thread::sleep_for(std::chrono::milliseconds(400 * session.rank()));
      handle.wait();
    }
    std::this_thread::sleep_for(1500ms);  // sleepers have looked
    EXPECT_EQ(session.stats().late_wakeups, 0U);
  });
}

}  // namespace
}  // namespace kolo
