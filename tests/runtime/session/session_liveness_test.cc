// What must not hang, or be lost: threads that sleep, close and leave beside each other, errors half-way, groups and
// pairs of ranks that are gone.

#include <kolo/session.h>

#include <chrono>
#include <latch>
#include <stdexcept>
#include <thread>

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
      } catch (const std::runtime_error&) {
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(Liveness, AThreadThatSleepsWithTheRoleDoesNotKeepAnotherFromLeaving) {
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
      EXPECT_LT(std::chrono::steady_clock::now() - start, 5s);
      sleeper.join();
      left.count_down();
    } else {
      left.wait();
    }
  });
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
