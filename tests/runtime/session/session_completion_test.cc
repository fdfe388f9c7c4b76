// What follows an operation that is done: threads that wait for it in several ways, functions, memory that was kept.

#include <kolo/session.h>

#include <atomic>
#include <chrono>
#include <future>
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

/// What one function was told, for another thread to wait for.
struct Told {
  std::function<void(const Error*)> function() const {
    return [text = text_](const Error* error) { text->set_value(error ? error->what() : ""); };
  }
  /// Empty: the operation went well.
  std::string wait() { return text_->get_future().get(); }

 private:
  std::shared_ptr<std::promise<std::string>> text_ = std::make_shared<std::promise<std::string>>();
};

/// One element that an operation is to keep; counts how often it was let go.
std::shared_ptr<float> kept(std::atomic<int>& freed) {
  return {new float(1), [&freed](float* value) {
            ++freed;
            delete value;
          }};
}

TEST(Completion, FunctionsSubmitAndFailWhileTheSessionIsDestroyed) {
  for (const int ranks : {1, 3}) {
    std::atomic<int> called{0}, reported{0};
    Config config = test_config();
    config.report = [&](const std::string& line) {
      if (line.find("' in group world: the function that follows it has thrown (a function throws), which nobody "
                    "catches; catch it there") != std::string::npos)
        ++reported;
    };
    run_ranks(
        ranks,
        [&](Session& session) {
          std::vector<std::thread> submitters;
          std::vector<float> values(16, 1);
          std::latch submitted(8);
          for (std::size_t i = 0; i < 8; ++i) {
            submitters.emplace_back([&, i] {
              auto first = session.all_reduce_async("first " + std::to_string(i), view_scalar(values[i]));
              first.on_done([&, i](const Error* error) {
                EXPECT_EQ(error, nullptr);
                EXPECT_EQ(values[i], static_cast<float>(session.size()));
                auto next = session.all_reduce_async("next " + std::to_string(i), view_scalar(values[8 + i]));
                submitted.count_down();
                next.on_done([&](const Error*) { ++called; });
                ++called;
                next.detach();
                throw std::runtime_error("a function throws");
              });
              first.wait();
            });
          }
          for (auto& submitter : submitters) submitter.join();
          submitted.wait();
          session.barrier();  // on every rank: who leaves earlier fails what others submit
          session.close();    // while `values` are there
        },
        config);
    EXPECT_EQ(called, 16 * ranks);
    EXPECT_EQ(reported, 8 * ranks);
  }
}

/// Eight threads and their functions submit, each the next operation when one is done, until the session is closed.
TEST(Completion, EveryFunctionIsToldOnceAndMemoryLetGoOnceWhileTheSessionCloses) {
  for (const int ranks : {1, 2, 3}) {
    run_ranks(ranks, [&](Session& session) {
      std::atomic<int> followed{0}, told{0}, held{0}, freed{0};
      const auto follow = [&](Handle& handle, const std::shared_ptr<float>& value, auto&& then) {
        ++followed;
        handle.on_done([&told, then](const Error* error) {
          ++told;
          if (!error) then();
        });
        ++held;
        handle.detach(std::shared_ptr<const void>(nullptr, [&freed, value](const void*) { ++freed; }));
      };
      std::latch under_way(8);
      std::vector<std::thread> submitters;
      for (int i = 0; i < 8; ++i) {
        submitters.emplace_back([&, i] {
          int turn = 0;
          try {
            for (;; ++turn) {
              const std::string name = std::to_string(i) + " " + std::to_string(turn);
              const auto value = std::make_shared<float>(1.0f);
              auto first = session.all_reduce_async(name, view_scalar(*value));
              follow(first, value, [&, name] {
                const auto another = std::make_shared<float>(1.0f);
                try {
                  auto next = session.all_reduce_async("then " + name, view_scalar(*another));
                  follow(next, another, [] {});
                } catch (const Error& error) {
                  EXPECT_EQ(to_string(error.code()), to_string(ErrorCode::closed)) << error.what();
                }
              });
              session.all_reduce("wait " + name, view_scalar(*value));
              if (turn == 3) under_way.count_down();
            }
          } catch (const Error& error) {
            EXPECT_EQ(to_string(error.code()), to_string(ErrorCode::closed)) << error.what();
          }
          if (turn <= 3) under_way.count_down();  // another rank was faster
        });
      }
      under_way.wait();
      session.close();
      for (auto& submitter : submitters) submitter.join();
      session.close();  // for functions that came after the first
      EXPECT_EQ(told, followed);
      EXPECT_EQ(freed, held);
    });
  }
}

/// …also by ~Session().
TEST(Completion, AFunctionSubmitsTheNextOperationUntilTheSessionIsDestroyed) {
  auto worlds = thread_worlds(2, test_config());
  std::vector<std::thread> threads;
  for (World& world : worlds) {
    threads.emplace_back([&world] {
      int turns = 0;
      std::string last;
      float value = 1;
      std::latch under_way(1);
      std::function<void(const Error*)> next;
      {
        Session session(std::move(world), test_config());
        next = [&](const Error* error) {
          try {
            if (error) throw Error(*error);
            if (++turns == 10) under_way.count_down();
            auto handle = session.all_reduce_async("next", view_scalar(value), {.op = ReduceOp::max});
            handle.on_done(next);
            handle.detach();
          } catch (const Error& end) {
            last = end.what();
          }
        };
        auto handle = session.all_reduce_async("next", view_scalar(value), {.op = ReduceOp::max});
        handle.on_done(next);
        handle.detach();
        under_way.wait();
      }
      EXPECT_GE(turns, 10);
      EXPECT_NE(last.find("'next'"), std::string::npos) << last;
      EXPECT_NE(last.find("close"), std::string::npos) << last;
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(Completion, OfADetachedOperationFreesWhatItKept) {
  run_ranks(2, [&](Session& session) {
    std::atomic<int> freed{0};
    std::promise<void> gone;
    auto values = std::shared_ptr<float>(new float(1), [&](float* value) {
      EXPECT_EQ(*value, 2);
      ++freed;
      delete value;
      gone.set_value();
    });
    float go = 0;
    if (session.rank() == 1) session.recv("go", view_scalar(go), 0);
    auto handle = session.all_reduce_async("kept", view_scalar(*values));
    float* const memory = values.get();
    handle.detach(std::move(values));
    EXPECT_FALSE(handle);
    if (session.rank() == 0) {
      EXPECT_EQ(freed, 0) << "the other rank has not submitted it";
      error_text([&] { session.all_reduce_async("kept", view_scalar(*memory)); }, ErrorCode::in_flight);
      session.send("go", view_scalar(go), 1);
    }
    gone.get_future().wait();
    session.close();
    EXPECT_EQ(freed, 1);
  });
}

/// …and what was done before, or fails since the session closes.
TEST(Completion, LetsGoOfWhatWasKeptHoweverItEnds) {
  std::atomic<int> freed{0};
  run_ranks(2, [&](Session& session) {
    auto done = kept(freed), alone = kept(freed);
    auto handle = session.all_reduce_async("done", view_scalar(*done));
    while (!handle.poll()) continue;
    handle.detach(std::move(done));
    Handle().detach(kept(freed));  // there is nothing to wait for
    Told told;
    if (session.rank() == 0) {
      handle = session.all_reduce_async("alone", view_scalar(*alone));
      handle.on_done(told.function());
      handle.detach(std::move(alone));
    }
    session.close();
    if (session.rank() == 0) {
      EXPECT_NE(told.wait().find("close"), std::string::npos);
    }
  });
  EXPECT_EQ(freed, 2 * 3);
}

TEST(Completion, FailuresReachFunctionsAndTheNextWait) {
  run_ranks(2, [&](Session& session) {
    float one = 1;
    std::vector<float> values(static_cast<std::size_t>(session.rank() + 1), 1);
    Told told, withdrawn;
    auto handle = session.all_reduce_async("differs", view(values));
    handle.on_done(told.function());
    handle.detach();
    EXPECT_NE(told.wait().find("differs"), std::string::npos);
    EXPECT_NE(error_text([&] { session.barrier(); }, ErrorCode::mismatch), "");
    session.barrier();
    if (session.rank() == 0) {
      auto dropped = session.all_reduce_async("dropped", view_scalar(one));
      dropped.on_done(withdrawn.function());
      dropped = {};
      const std::string text = withdrawn.wait();
      EXPECT_NE(text.find("withdrawn"), std::string::npos) << text;
    }
    session.barrier();  // a rank that closes its session would fail it otherwise
  });
}

/// Agreed on or not: what the function is told is what became of the tensor.
TEST(Completion, AHandleDiesBeforeItsFunctions) {
  run_ranks(2, [&](Session& session) {
    for (int turn = 0; turn < 100; ++turn) {
      float value = 1;
      Told told;
      {
        auto handle = session.all_reduce_async("dies " + std::to_string(turn), view_scalar(value));
        handle.on_done(told.function());
        if (turn % 2 == 1) handle.poll();
      }
      const std::string text = told.wait();
      EXPECT_EQ(value, text.empty() ? 2 : 1);
      EXPECT_EQ(text.empty(), text.find("withdrawn") == std::string::npos) << text;
      session.barrier();
    }
  });
}

TEST(Completion, FunctionsRunInOrderAlsoOfWhatIsDone) {
  run_ranks(2, [&](Session& session) {
    float value = 1;
    std::vector<int> order;
    auto handle = session.all_reduce_async("x", view_scalar(value));
    while (!handle.poll()) continue;
    for (int i = 0; i < 10; ++i) {
      handle.on_done([&order, i](const Error* error) {
        EXPECT_EQ(error, nullptr);
        order.push_back(i);
      });
    }
    handle.wait();
    error_text([&] { handle.on_done([](const Error*) {}); }, ErrorCode::invalid_argument);
    session.close();
    EXPECT_EQ(order, (std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
  });
}

TEST(Completion, FunctionsSubmitAndWait) {
  run_ranks(3, [&](Session& session) {
    float value = 1, inner = 1;
    std::thread::id first, second;
    auto handle = session.all_reduce_async("outer", view_scalar(value));
    handle.on_done([&](const Error*) {
      first = std::this_thread::get_id();
      session.all_reduce("inner", view_scalar(inner));
      auto timed = session.all_reduce_async("timed", view_scalar(inner));
      while (!timed.wait_until(std::chrono::steady_clock::now() + 1ms)) continue;
    });
    std::latch both(1);
    handle.on_done([&](const Error*) {
      second = std::this_thread::get_id();
      both.count_down();
    });
    handle.wait();
    both.wait();
    EXPECT_EQ(inner, 9);
    EXPECT_EQ(first, second);
    EXPECT_NE(first, std::this_thread::get_id());
  });
}

/// …beside another thread that closes it, and is not back before the function is.
TEST(Completion, AFunctionClosesTheSession) {
  for (const bool another : {false, true}) {
    run_ranks(2, [&](Session& session) {
      float value = 1;
      std::atomic<bool> returned{false};
      std::latch begun(1);
      auto handle = session.all_reduce_async("x", view_scalar(value));
      handle.on_done([&](const Error*) {
        begun.count_down();
        session.close();
        returned = true;
      });
      handle.on_done([&](const Error*) {  // after what it says
        error_text([&] { session.all_reduce("y", view_scalar(value)); }, ErrorCode::closed);
      });
      handle.wait();
      if (!another) begun.wait();
      session.close();
      EXPECT_TRUE(returned);
    });
  }
}

TEST(Completion, IsWaitedForInTimeByManyAndByAny) {
  for (const int ranks : {1, 2}) {
    run_ranks(ranks, [&](Session& session) {
      float one = 1, other = 1, go = 0;
      const bool late = session.rank() == 1;
      if (late) session.recv("go", view_scalar(go), 0);
      std::vector<Handle> handles(2);
      handles[0] = session.all_reduce_async("timed", view_scalar(one));
      std::vector<std::thread> waiters;
      for (int i = 0; i < 4; ++i) waiters.emplace_back([&] { handles[0].wait(); });
      if (session.size() > 1 && !late) {  // with the role or without it
        EXPECT_FALSE(handles[0].wait_until(std::chrono::steady_clock::now() + 20ms));
        EXPECT_FALSE(handles[0].wait_until({}));
        session.send("go", view_scalar(go), 1);
      }
      for (int i = 0; i < 4; ++i) waiters.emplace_back([&] { handles[0].wait(); });
      for (auto& waiter : waiters) waiter.join();
      EXPECT_EQ(one, static_cast<float>(session.size()));
      EXPECT_TRUE(handles[0].wait_until({})) << "it is empty";
      handles[0] = session.all_reduce_async("timed", view_scalar(one));
      EXPECT_TRUE(handles[0].wait_until(std::chrono::steady_clock::now() + 60s));
      if (late) session.recv("go", view_scalar(go), 0);
      handles[0] = session.all_reduce_async("late", view_scalar(one));
      handles[1] = session.all_reduce_async("early", view_scalar(other));
      if (session.size() > 1 && !late) session.send("go", view_scalar(go), 1);
      const std::size_t first = wait_any(handles);
      EXPECT_LT(first, 2U);
      handles[first].wait();
      wait_all(handles);
      EXPECT_EQ(other, static_cast<float>(session.size()));
    });
  }
}

TEST(Completion, OfOneOperationReachesAllThreadsWhenTheSessionCloses) {
  run_ranks(2, [&](Session& session) {
    if (session.rank() == 1) return;  // and closes
    float one = 1;
    std::atomic<int> closed{0};
    auto handle = session.all_reduce_async("never", view_scalar(one));
    std::vector<std::thread> waiters;
    for (int i = 0; i < 8; ++i) {
      waiters.emplace_back([&, i] {
        try {
          i % 2 == 0 ? handle.wait() : (void)handle.wait_until(std::chrono::steady_clock::now() + 60s);
        } catch (const Error& error) {
          EXPECT_EQ(to_string(error.code()), to_string(ErrorCode::closed)) << error.what();
          ++closed;
        }
      });
    }
    session.close();
    for (auto& waiter : waiters) waiter.join();
    EXPECT_GE(closed, 1) << "who comes when it is done finds the handle empty";
    EXPECT_FALSE(handle);
  });
}

TEST(Completion, WaitAllWaitsForAllAndThrowsTheFirstFailure) {
  run_ranks(2, [&](Session& session) {
    std::vector<float> values(static_cast<std::size_t>(session.rank() + 1), 1);
    float fine = 1, late = 1;
    std::vector<Handle> handles(5);  // the last one is empty
    handles[0] = session.all_reduce_async("fine", view_scalar(fine));
    handles[1] = session.all_reduce_async("differs", view(values));
    handles[2] = session.all_reduce_async("differs, too", view(values));
    if (session.rank() == 1) {
      error_text([&] { handles[1].wait(); }, ErrorCode::mismatch);
      error_text([&] { handles[2].wait(); }, ErrorCode::mismatch);
    }
    handles[3] = session.all_reduce_async("late", view_scalar(late));
    if (session.rank() == 0) {
      const std::string text = error_text([&] { wait_all(handles); }, ErrorCode::mismatch);
      EXPECT_NE(text.find("'differs'"), std::string::npos) << text;
    }
    wait_all(handles);
    for (const Handle& handle : handles) EXPECT_FALSE(handle);
    EXPECT_EQ(fine, 2);
    EXPECT_EQ(late, 2);
    wait_all({});
  });
}

TEST(Completion, WaitAnyFindsWhatIsDoneEmptyOrFailed) {
  run_ranks(2, [&](Session& session) {
    error_text([&] { wait_any(std::span<Handle>()); }, ErrorCode::invalid_argument);
    std::vector<float> values(static_cast<std::size_t>(session.rank() + 1), 1);
    float slow = 1, quick = 1, go = 0;
    std::vector<Handle> handles(3);
    const bool late = session.rank() == 1;
    if (!late) handles[0] = session.all_reduce_async("slow", view_scalar(slow));
    handles[1] = session.all_reduce_async("quick", view_scalar(quick));
    if (!late) {
      Handle* const empty[] = {&handles[0], &handles[2]};
      EXPECT_EQ(wait_any(empty), 1U);
      Handle* const two[] = {&handles[0], &handles[1]};
      EXPECT_EQ(wait_any(two), 1U);
      EXPECT_EQ(wait_any(two), 1U) << "it is done";
    }
    handles[1].wait();
    handles[2] = session.all_reduce_async("differs", view(values));
    if (!late) {
      Handle* const two[] = {&handles[0], &handles[2]};
      EXPECT_EQ(wait_any(two), 1U);
      EXPECT_TRUE(handles[2]);
    }
    error_text([&] { handles[2].wait(); }, ErrorCode::mismatch);
    if (!late) session.send("go", view_scalar(go), 1);
    if (late) session.recv("go", view_scalar(go), 0);
    if (late) handles[0] = session.all_reduce_async("slow", view_scalar(slow));
    EXPECT_EQ(wait_any(std::span(handles).first(1)), 0U);
    handles[0].wait();
    EXPECT_EQ(slow + quick, 4);
  });
}

/// Whoever waits for several sessions must not sleep on the doorbell of one.
TEST(Completion, WaitAnyOfSeveralSessionsWakesForEach) {
  auto worlds = thread_worlds(2, test_config());
  run_ranks(2, [&](Session& first) {
    Session second(std::move(worlds[static_cast<std::size_t>(first.rank())]), test_config());
    std::chrono::nanoseconds took{0};  // of several: a sleeper that nobody wakes looks after a second at most
    for (int turn = 0; turn < 5; ++turn) {
      float slow = 1, quick = 1;
      std::vector<Handle> handles(2);
      if (first.rank() == 0) {
        handles[0] = first.all_reduce_async("slow", view_scalar(slow));
        handles[1] = second.all_reduce_async("quick", view_scalar(quick));
        EXPECT_EQ(wait_any(handles), 1U);
        wait_all(std::span(handles).last(1));
        second.send("go", view_scalar(quick), 1);
        wait_all(handles);
      } else {
        std::this_thread::sleep_for(200ms);  // it has gone to sleep
        const auto start = std::chrono::steady_clock::now();
        second.all_reduce("quick", view_scalar(quick));
        second.recv("go", view_scalar(quick), 0);
        took += std::chrono::steady_clock::now() - start;
        first.all_reduce("slow", view_scalar(slow));
      }
    }
    EXPECT_LT(took, 2s);
    testing::close(second);
  });
}

}  // namespace
}  // namespace kolo
