// What a session promises about results and cost: the same bits in every run, any thread may submit, few control bytes.

#include <kolo/session.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <latch>
#include <numeric>
#include <random>
#include <thread>

#include "tests/support/thread_ranks.h"

namespace kolo {
namespace {

using testing::run_ranks;
using testing::test_config;

/// Random numbers over many orders of magnitude, so that every order of addition gives other bits.
std::vector<float> random_values(int rank, int tensor, std::size_t count) {
  std::mt19937_64 random(static_cast<std::uint64_t>(rank * 1000 + tensor));
  std::normal_distribution<float> normal;
  std::uniform_int_distribution<int> exponent(-12, 12);
  std::vector<float> values(count);
  for (float& value : values) value = std::ldexp(normal(random), exponent(random));
  return values;
}

std::size_t count_of(int tensor) {
  return static_cast<std::size_t>(1 + (tensor * 37) % 500);
}

class SameBits : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, SameBits, ::testing::Values(2, 3, 4));

TEST_P(SameBits, InRankOrderWhateverTheArrival) {
  const int ranks = GetParam(), tensors = 20;
  std::vector<std::vector<float>> expected;  // rank after rank, as a serial program adds
  for (int tensor = 0; tensor < tensors; ++tensor) {
    expected.push_back(random_values(0, tensor, count_of(tensor)));
    for (int rank = 1; rank < ranks; ++rank) {
      const auto more = random_values(rank, tensor, count_of(tensor));
      for (std::size_t i = 0; i < more.size(); ++i) expected.back()[i] += more[i];
    }
  }
  for (int run = 0; run < 8; ++run) {
    Config config = test_config();
    config.fusion_bytes = run % 2 == 0 ? 64 << 20 : 3000;
    run_ranks(
        ranks,
        [&](Session& session) {
          std::mt19937_64 random(static_cast<std::uint64_t>(run * 10 + session.rank()));
          for (int step = 0; step < 4; ++step) {
            std::vector<int> order(tensors);
            std::iota(order.begin(), order.end(), 0);
            if (run > 1) std::shuffle(order.begin(), order.end(), random);
            std::vector<std::vector<float>> values(tensors);
            std::vector<Handle> handles(tensors);
            for (int tensor : order) {
              const auto i = static_cast<std::size_t>(tensor);
              values[i] = random_values(session.rank(), tensor, count_of(tensor));
              if (run > 3) std::this_thread::sleep_for(std::chrono::microseconds(random() % 100));
              handles[i] = session.all_reduce_async("g" + std::to_string(tensor), view(values[i]));
            }
            for (Handle& handle : handles) handle.wait();
            for (std::size_t i = 0; i < values.size(); ++i) {
              ASSERT_EQ(std::memcmp(values[i].data(), expected[i].data(), values[i].size() * sizeof(float)), 0)
                  << "g" << i << " in step " << step << " of run " << run;
            }
          }
        },
        config);
  }
}

TEST(Threads, SeveralSubmitAndWaitOnOneRank) {
  const int threads = 4, steps = 50;
  run_ranks(3, [&](Session& session) {
    std::vector<std::thread> workers;
    for (int worker = 0; worker < threads; ++worker) {
      workers.emplace_back([&session, worker] {
        for (int step = 0; step < steps; ++step) {
          std::vector<std::int64_t> values(static_cast<std::size_t>(1 + worker), session.rank() + step),
              more(5, worker);
          Handle handle = session.all_reduce_async("own" + std::to_string(worker), view(values));
          session.all_reduce("more" + std::to_string(worker), view(more), {.op = ReduceOp::max});
          handle.wait();
          EXPECT_EQ(values, std::vector<std::int64_t>(values.size(), 3 + 3 * step));  // 0+1+2 + 3·step
          EXPECT_EQ(more, std::vector<std::int64_t>(5, worker));
        }
      });
    }
    for (auto& worker : workers) worker.join();
  });
}

/// A thread that has gone to sleep waits for a peer while another thread of its rank drives, finishes and goes home.
TEST(Threads, AWaiterIsServedAfterTheDriverHasLeft) {
  Config config = test_config();
  config.spin_us = 0;
  for (int round = 0; round < 20; ++round) {
    std::latch driver_left(2);
    run_ranks(
        2,
        [&](Session& session) {
          float quick = 1, slow = 1;
          std::thread sleeper;
          if (session.rank() == 0) sleeper = std::thread([&] { session.all_reduce("slow", view_scalar(slow)); });
          session.all_reduce("quick", view_scalar(quick));
          driver_left.arrive_and_wait();
          if (session.rank() == 1) session.all_reduce("slow", view_scalar(slow));
          if (sleeper.joinable()) sleeper.join();
          EXPECT_EQ(quick + slow, 4);
        },
        config);
  }
}

/// Each of its operations moves at every step until it is complete, and takes longer for one than a thread that waits
/// keeps looking. It rings no doorbell: whoever went to sleep in between would sleep for ever.
class MovingBackend final : public Backend {
 public:
  static constexpr int steps = 20;

  explicit MovingBackend(std::atomic<int>& steps_made) : steps_made_(steps_made) {}
  std::string_view name() const override { return "moving"; }
  bool supports(const Signature& signature) const override { return signature.dtype == DType::i8; }
  std::unique_ptr<Operation> start(const Bucket&) override {
    struct Moving final : Operation {
      explicit Moving(std::atomic<int>& counted) : steps_made(counted) {}
      bool step() override {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        return ++steps_made % steps == 0;
      }
      bool needs_polling() const override { return false; }
      bool moved() const override { return true; }
      std::atomic<int>& steps_made;
    };
    return std::make_unique<Moving>(steps_made_);
  }
  std::unique_ptr<Backend> for_group(const GroupInfo&) override { return std::make_unique<MovingBackend>(steps_made_); }
  void abandon() noexcept override {}

 private:
  std::atomic<int>& steps_made_;
};

TEST(Threads, NobodySleepsWhileAnOperationMoves) {
  std::atomic<int> steps_made{0};
  World world = solo_world(test_config());
  world.prefer(std::make_unique<MovingBackend>(steps_made));
  Session session(std::move(world), test_config());
  std::int8_t waited = 1, left = 1;
  session.all_reduce("waited", view_scalar(waited));
  EXPECT_EQ(steps_made, MovingBackend::steps);

  const auto wait_for_steps = [&](int steps) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (steps_made < steps && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_EQ(steps_made, steps);
  };
  Handle handle = session.all_reduce_async("left to the background thread", view_scalar(left));
  (void)handle.poll();  // as a program does that looks once and goes on
  wait_for_steps(2 * MovingBackend::steps);

  const Group group = session.new_group(session.world().info()->ranks, {.order = Order::program});
  session.all_reduce(view_scalar(waited), {.group = group});
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  Handle begun = session.all_reduce_async(view_scalar(left), {.group = group});  // begins in this thread
  wait_for_steps(4 * MovingBackend::steps);
  EXPECT_EQ(session.stats().late_wakeups, 0U);
}

TEST(Barriers, WaitForEverybody) {
  for (const int ranks : {1, 2, 3, 4}) {
    std::atomic<int> arrived{0};
    run_ranks(ranks, [&](Session& session) {
      for (int round = 1; round <= 5; ++round) {
        std::this_thread::sleep_for(std::chrono::milliseconds(session.rank()));
        ++arrived;
        session.barrier();
        ASSERT_GE(arrived.load(), round * session.size());
        session.barrier();
      }
    });
  }
}

TEST(Barriers, MatchInOrderWhoeverWaitsInBetween) {
  for (int round = 0; round < 10; ++round) {
    run_ranks(2, [](Session& session) {
      for (int i = 0; i < 100; ++i) {
        Handle first = session.barrier_async();
        if (session.rank() == 0) first.wait();
        Handle second = session.barrier_async();
        second.wait();
        first.wait();
      }
    });
  }
}

TEST(Barriers, AWithdrawnOneNeverWas) {
  std::latch dropped(1);
  run_ranks(2, [&](Session& session) {
    if (session.rank() == 0) {
      (void)session.barrier_async();
      dropped.count_down();
    }
    dropped.wait();
    for (int i = 0; i < 3; ++i) session.barrier();
  });
}

TEST(Plans, ATensorThatRunsTwiceWithoutAWaitKeepsRunning) {
  run_ranks(2, [](Session& session) {
    for (int step = 0; step < 3; ++step) {
      float x = 1, y = 1;
      for (int i = 0; i < 3; ++i) {
        Handle handle = session.all_reduce_async("x", view_scalar(x));
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        while (!handle.poll()) std::this_thread::yield();
      }
      session.all_reduce("y", view_scalar(y));
      ASSERT_EQ(x, 8);
      ASSERT_EQ(y, 2);
    }
  });
}

TEST(Plans, PollsAndOtherGroupsCutNothingForGood) {
  run_ranks(2, [](Session& session) {
    const std::vector<int> both{0, 1};
    const Group other = session.new_group(both);
    std::vector<std::vector<float>> tensors(40, std::vector<float>(1024, 1));
    float layer = 1;
    const auto buckets_of_step = [&](bool polls, bool blocks) {
      const auto before = session.stats().buckets;
      std::vector<Handle> handles;
      for (std::size_t i = 0; i < tensors.size(); ++i) {
        const std::string name = "t" + std::to_string(i);
        handles.push_back(session.all_reduce_async(name, view(tensors[i]), {.op = ReduceOp::average}));
        if (polls) (void)handles.back().poll();
        if (blocks) session.all_reduce("layer", view_scalar(layer), {.op = ReduceOp::average, .group = other});
      }
      for (Handle& handle : handles) handle.wait();
      session.barrier();
      return session.stats().buckets - before - (blocks ? tensors.size() : 0);
    };
    for (int step = 0; step < 25; ++step) buckets_of_step(true, false);  // a thousand polls
    for (int step = 0; step < 29; ++step) buckets_of_step(false, false);
    EXPECT_LE(buckets_of_step(false, false), 2u);
    for (int step = 0; step < 29; ++step) buckets_of_step(false, true);
    EXPECT_LE(buckets_of_step(false, true), 2u);
  });
}

/// Sums "a" and "b" together, three times.
void plan_one_bucket(Session& session, float& a, float& b) {
  for (int step = 0; step < 3; ++step) {
    Handle first = session.all_reduce_async("a", view_scalar(a)),
           second = session.all_reduce_async("b", view_scalar(b));
    first.wait();
    second.wait();
  }
}

TEST(Plans, ABucketIsCutWhereAProgramWaitsForSomethingElse) {
  run_ranks(2, [](Session& session) {
    float a = 1, b = 2, c = 3;
    const auto start = [&](const char* name, float& value) {
      return session.all_reduce_async(name, view_scalar(value));
    };
    plan_one_bucket(session, a, b);
    Handle first = start("a", a), second;
    if (session.rank() == 0) {  // has all of the bucket, and waits for it; the other waits for what comes next here
      second = start("b", b);
      first.wait();
    }
    Handle third = start("c", c);
    third.wait();
    if (session.rank() == 1) second = start("b", b);
    first.wait();
    second.wait();
    EXPECT_EQ(a, 16);
    EXPECT_EQ(b, 32);
    EXPECT_EQ(c, 6);
  });
}

TEST(Plans, ABucketIsCutWhereAProgramWaitsOutsideOfTheSession) {
  std::latch ran(1);
  run_ranks(2, [&](Session& session) {
    float a = 1, b = 2;
    const auto start = [&](const char* name, float& value) {
      return session.all_reduce_async(name, view_scalar(value));
    };
    plan_one_bucket(session, a, b);
    Handle first = start("a", a), second;
    if (session.rank() == 0) {
      second = start("b", b);
      first.wait();
      ran.count_down();
    } else {
      ran.wait();
      second = start("b", b);
    }
    first.wait();
    second.wait();
    EXPECT_EQ(a, 16);
    EXPECT_EQ(b, 32);
  });
}

void train_step(Session& session, std::vector<std::vector<float>>& grads) {
  std::vector<Handle> handles;
  for (std::size_t i = 0; i < grads.size(); ++i)
    handles.push_back(session.all_reduce_async("grad" + std::to_string(i), view(grads[i])));
  for (Handle& handle : handles) handle.wait();
}

struct Cost {
  int ranks;
  const char* fake_nodes;
};
class SteadyState : public ::testing::TestWithParam<Cost> {};
INSTANTIATE_TEST_SUITE_P(Worlds, SteadyState, ::testing::Values(Cost{2, ""}, Cost{3, ""}, Cost{4, ""}, Cost{4, "2,2"}),
                         [](const auto& info) {
                           return std::to_string(info.param.ranks) + (*info.param.fake_nodes ? "on2nodes" : "");
                         });

TEST_P(SteadyState, CostsOneAgreementAndFewBytesPerBucket) {
  const int tensors = 200, steps = 20;
  const std::size_t elements = 1000;
  Config config = test_config();
  config.fake_nodes = GetParam().fake_nodes;
  config.fusion_bytes = 50 * 4000;  // 50 tensors a bucket: 4 buckets
  std::atomic<std::uint64_t> bytes{0};
  run_ranks(
      GetParam().ranks,
      [&](Session& session) {
        std::vector<std::vector<float>> grads(tensors, std::vector<float>(elements, 1));
        for (int step = 0; step < 3; ++step) train_step(session, grads);
        session.barrier();
        session.barrier();  // everybody has the plan
        const SessionStats before = session.stats();
        for (int step = 0; step < steps; ++step) train_step(session, grads);
        const SessionStats after = session.stats();
        session.barrier();
        EXPECT_EQ(after.tensors - before.tensors, static_cast<std::uint64_t>(tensors * steps));
        EXPECT_EQ(after.buckets - before.buckets, 4u * steps);
        EXPECT_LE(after.agreements - before.agreements, 4u * steps);
        EXPECT_EQ(after.full_announcements, before.full_announcements) << "names after the first step";
        bytes += after.control_bytes_sent - before.control_bytes_sent;
      },
      config);
  EXPECT_LE(bytes, 64u * 4 * steps * static_cast<unsigned>(GetParam().ranks));
}

}  // namespace
}  // namespace kolo
