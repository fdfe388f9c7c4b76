// Ranks that do something wrong, leave early or break down: the same error everywhere, and nobody hangs.

#include <kolo/session.h>

#include <algorithm>
#include <atomic>
#include <latch>
#include <mutex>
#include <thread>

#include "tests/support/thread_ranks.h"

// Sanitizers, like any allocator, say so when there is no memory, instead of ending the process.
extern "C" const char* __asan_default_options() {
  return "allocator_may_return_null=1";
}
extern "C" const char* __tsan_default_options() {
  return "allocator_may_return_null=1";
}

namespace kolo {
namespace {

using testing::error_text;
using testing::run_ranks;
using testing::test_config;

struct WorldShape {
  int ranks;
  const char* fake_nodes;
};
class Failing : public ::testing::TestWithParam<WorldShape> {
 protected:
  Config config() const {
    Config config = test_config();
    config.fake_nodes = GetParam().fake_nodes;
    return config;
  }
  int ranks() const { return GetParam().ranks; }
};
INSTANTIATE_TEST_SUITE_P(Worlds, Failing,
                         ::testing::Values(WorldShape{2, ""}, WorldShape{3, ""}, WorldShape{4, ""},
                                           WorldShape{4, "2,2"}, WorldShape{4, "1,1,2"}),
                         [](const auto& info) {
                           std::string nodes = info.param.fake_nodes;
                           std::replace(nodes.begin(), nodes.end(), ',', '_');
                           return std::to_string(info.param.ranks) + (nodes.empty() ? "ranks" : "ranks_on_" + nodes);
                         });

void expect_sum_of_ones(Session& session, const std::string& name) {
  std::vector<float> ones(10, 1);
  session.all_reduce(name, view(ones));
  for (float value : ones) ASSERT_EQ(value, static_cast<float>(session.size()));
}

TEST(Names, OneInFlightLeavesTheFirstUntouched) {
  run_ranks(2, [](Session& session) {
    std::vector<float> first(8, 1), second(8, 5);
    Handle barrier;
    if (session.rank() == 1) session.barrier();  // rank 0 has submitted everything
    Handle handle = session.all_reduce_async("grad", view(first));
    if (session.rank() == 0) {
      EXPECT_EQ(error_text([&] { (void)session.all_reduce_async("grad", view(second)); }, ErrorCode::in_flight),
                "all_reduce 'grad' in group world: the name is already in flight on this rank; wait for the first "
                "operation or "
                "use another name");
      session.barrier();
    }
    handle.wait();
    EXPECT_EQ(first, std::vector<float>(8, 2));
    EXPECT_EQ(second, std::vector<float>(8, 5));
  });
}

TEST(Names, TheRuntimesOwnAreRefused) {
  run_ranks(1, [](Session& session) {
    float one = 1;
    EXPECT_EQ(error_text([&] { session.all_reduce("kolo.close", view_scalar(one)); }, ErrorCode::invalid_argument),
              "'kolo.close': names that begin with 'kolo.' are the runtime's own; use another");
    const std::vector<NamedTensor> parts{{"part", view_scalar(one), view_scalar(one)},
                                         {"kolo.barrier.3", view_scalar(one), view_scalar(one)}};
    EXPECT_EQ(error_text([&] { (void)session.grouped_all_reduce_async("whole", parts); }, ErrorCode::invalid_argument),
              "'kolo.barrier.3': names that begin with 'kolo.' are the runtime's own; use another");
    EXPECT_EQ(error_text([&] { (void)session.all_reduce_async(TensorId{7}, view_scalar(one), view_scalar(one)); },
                         ErrorCode::invalid_argument),
              "a TensorId was used that the session's declare() did not return");
  });
}

TEST(Closing, UseAfterCloseIsAnError) {
  run_ranks(2, [](Session& session) {
    expect_sum_of_ones(session, "a");
    session.close();
    session.close();
    float one = 1;
    EXPECT_EQ(error_text([&] { session.all_reduce("a", view_scalar(one)); }, ErrorCode::closed),
              "all_reduce 'a' in group world: the session is closed; submit before close()");
    EXPECT_EQ(error_text([&] { session.broadcast("a", view_scalar(one)); }, ErrorCode::closed),
              "broadcast 'a' in group world: the session is closed; submit before close()");
    EXPECT_EQ(error_text([&] { session.barrier(); }, ErrorCode::closed).substr(0, 7), "barrier");
    EXPECT_EQ(one, 1);
  });
}

TEST_P(Failing, ARankThatClosesEarlyEndsWhatTheOthersSubmit) {
  run_ranks(
      ranks(),
      [&](Session& session) {
        expect_sum_of_ones(session, "a");
        if (session.rank() == 1) return;
        float one = 1;
        const std::string expected =
            "all_reduce 'b' in group world: rank 1 closed the session (the operation needs every rank of the "
            "group); close sessions when all ranks are done";
        EXPECT_EQ(error_text([&] { session.all_reduce("b", view_scalar(one)); }, ErrorCode::closed), expected);
        EXPECT_EQ(one, 1);
      },
      config());
}

/// Some tensors are announced by everybody but the last rank when another one leaves: they must not start any more.
TEST_P(Failing, ClosingWithOperationsInFlightFailsThemEverywhere) {
  for (int round = 0; round < 20; ++round) {
    run_ranks(
        ranks(),
        [&](Session& session) {
          for (int step = 0; step < 2; ++step) expect_sum_of_ones(session, "x");
          std::vector<float> ones(10, 1);
          Handle handle;
          if (session.rank() != 0 || round % 2 == 0) handle = session.all_reduce_async("x", view(ones));
          if (round % 3 == 0) std::this_thread::sleep_for(std::chrono::microseconds(100 * session.rank()));
          if (session.rank() == session.size() - 1) session.close();
          try {
            handle.wait();
          } catch (const Error& error) {
            EXPECT_EQ(to_string(error.code()), "closed") << error.what();
          }
        },
        config());
  }
}

/// It is too large for any machine; what it holds is never looked at.
TEST_P(Failing, NoMemoryWhereARankHasJoinedIsOneOperationsError) {
  run_ranks(
      ranks(),
      [&](Session& session) {
        if (session.rank() > 0) {
          session.join();
          return expect_sum_of_ones(session, "after all have joined");
        }
        std::uint8_t value = 1;
        const Tensor huge{&value, Shape{std::int64_t{1} << 57}, DType::u8, {}};
        const auto expect_failure = [&](const std::string& text) {
          const std::string expected =
              ": it has joined, and has no memory for its part (cannot allocate "
              "144115188075855872 bytes of host memory); free memory there";
          EXPECT_EQ(text.substr(0, text.find(':')), "all_reduce 'huge' in group world");
          EXPECT_NE(text.find(expected), std::string::npos) << text;
        };
        for (int i = 0; i < 3; ++i) {
          session.all_reduce("before", view_scalar(value));
          expect_failure(error_text([&] { session.all_reduce("huge", huge); }, ErrorCode::backend));
          const std::vector<NamedTensor> both{{"small", view_scalar(value), view_scalar(value)}, {"part", huge, huge}};
          expect_failure(
              error_text([&] { session.grouped_all_reduce_async("huge", both).wait(); }, ErrorCode::backend));
          Handle beside = session.all_reduce_async("beside", view_scalar(value));
          Handle fails = session.all_reduce_async("huge", huge);
          beside.wait();
          expect_failure(error_text([&] { fails.wait(); }, ErrorCode::backend));
          session.barrier();
          EXPECT_EQ(value, 1);
        }
        EXPECT_EQ(session.join(), 0);
        expect_sum_of_ones(session, "after all have joined");
      },
      config());
}

struct Unfinished : std::runtime_error {
  Unfinished() : std::runtime_error("the program of this rank failed") {}
};

TEST_P(Failing, ARankThatLeavesByExceptionAbortsTheOthers) {
  for (int leaver = 0; leaver < ranks(); ++leaver) {
    auto worlds = thread_worlds(ranks(), config());
    std::latch all_have_waited(ranks()), all_have_submitted(ranks());
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks(); ++rank) {
      threads.emplace_back([&, rank] {
        try {
          Session session(std::move(worlds[static_cast<std::size_t>(rank)]), config());
          expect_sum_of_ones(session, "a");
          all_have_waited.arrive_and_wait();
          std::vector<float> ones(10, 1);
          Handle handle;
          if (rank != leaver) handle = session.all_reduce_async("b", view(ones));
          all_have_submitted.arrive_and_wait();
          if (rank == leaver) throw Unfinished();
          const std::string expected =
              "group world: rank " + std::to_string(leaver) +
              " left without finishing (an error ended its program); see what that rank printed";
          EXPECT_EQ(error_text([&] { handle.wait(); }, ErrorCode::aborted), expected);
          EXPECT_EQ(error_text([&] { session.all_reduce("c", view(ones)); }, ErrorCode::aborted), expected);
          EXPECT_EQ(error_text([&] { session.barrier(); }, ErrorCode::aborted), expected);
        } catch (const Unfinished&) {
          EXPECT_EQ(rank, leaver);
        } catch (const std::exception& error) {
          ADD_FAILURE() << "rank " << rank << ": " << error.what();
        }
      });
    }
    for (auto& thread : threads) thread.join();
  }
}

/// Runs everything at once and correctly only on one rank's own values; one rank's throws on demand.
class TestBackend final : public Backend {
 public:
  enum class DeviceFault { none, start_throws, step_throws, step_throws_foreign, step_throws_a_number };
  explicit TestBackend(DeviceFault fault) : fault_(fault) {}
  std::string_view name() const override { return "test"; }
  bool supports(const Signature& signature) const override { return signature.dtype == DType::i8; }
  std::unique_ptr<Operation> start(const Bucket&) override {
    if (fault_ == DeviceFault::start_throws) throw Error(ErrorCode::backend, "the device fell off the bus; reboot");
    return std::make_unique<Pending>(fault_);
  }
  std::unique_ptr<Backend> for_group(const GroupInfo&) override { return nullptr; }
  void abandon() noexcept override {}

 private:
  struct Pending final : Operation {
    explicit Pending(DeviceFault wanted) : fault(wanted) {}
    bool step() override {
      if (fault == DeviceFault::step_throws) throw Error(ErrorCode::backend, "the device fell off the bus; reboot");
      if (fault == DeviceFault::step_throws_foreign) throw std::runtime_error("the device fell off the bus; reboot");
      if (fault == DeviceFault::step_throws_a_number) throw 42;
      return false;  // peers that work wait for the one that does not
    }
    bool needs_polling() const override { return false; }
    DeviceFault fault;
  };
  DeviceFault fault_;
};

TEST_P(Failing, ABackendThatThrowsIsTheSameErrorOnEveryRank) {
  using DeviceFault = TestBackend::DeviceFault;
  for (const DeviceFault fault : {DeviceFault::start_throws, DeviceFault::step_throws, DeviceFault::step_throws_foreign,
                                  DeviceFault::step_throws_a_number}) {
    for (int broken = 0; broken < ranks(); ++broken) {
      auto worlds = thread_worlds(ranks(), config());
      for (int rank = 0; rank < ranks(); ++rank) {
        worlds[static_cast<std::size_t>(rank)].prefer(
            std::make_unique<TestBackend>(rank == broken ? fault : DeviceFault::none));
      }
      std::vector<std::thread> threads;
      for (World& world : worlds) {
        threads.emplace_back([&] {
          Session session(std::move(world), config());
          std::vector<std::int8_t> first(4, 1), second(4, 1);
          expect_sum_of_ones(session, "before");
          Handle one = session.all_reduce_async("one", view(first));
          Handle two = session.all_reduce_async("two", view(second), {.op = ReduceOp::max});
          const std::string expected = fault == DeviceFault::step_throws_a_number
                                           ? "a backend threw something that is no exception of the standard library"
                                           : "the device fell off the bus; reboot";
          EXPECT_EQ(error_text([&] { two.wait(); }, ErrorCode::backend), expected);
          EXPECT_EQ(error_text([&] { one.wait(); }, ErrorCode::backend), expected);
          EXPECT_EQ(error_text([&] { session.barrier(); }, ErrorCode::backend), expected);
          testing::close(session);
        });
      }
      for (auto& thread : threads) thread.join();
    }
  }
}

TEST_P(Failing, ADroppedHandleIsWithdrawnAndCanBeSubmittedAgain) {
  for (int dropper = 0; dropper < ranks(); ++dropper) {
    std::latch dropped(1);
    run_ranks(
        ranks(),
        [&](Session& session) {
          for (int step = 0; step < 2; ++step) expect_sum_of_ones(session, "x");
          auto values = std::make_unique<std::vector<float>>(1000, 1.0f);
          if (session.rank() == dropper) {
            auto doomed = std::make_unique<std::vector<float>>(10, 100.0f);
            (void)session.all_reduce_async("x", view(*doomed));  // planned
            (void)session.all_reduce_async("new", view(*doomed));
            doomed.reset();
            dropped.count_down();
          } else {
            dropped.wait();
          }
          session.all_reduce("new", view(*values));
          EXPECT_EQ(*values, std::vector<float>(1000, static_cast<float>(session.size())));
          expect_sum_of_ones(session, "x");
        },
        config());
  }
}

}  // namespace
}  // namespace kolo
