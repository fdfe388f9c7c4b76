// Sessions with tensors on GPUs, from submission to the program's stream, over fake GPUs and a fake NCCL: ranks
// are threads.

#include <kolo/session.h>
#include <kolo/store.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <ctime>
#include <latch>
#include <thread>

#include "ops/local/backend.h"
#include "ops/nccl/rank.h"
#include "runtime/world/gpu_identity.h"
#include "tests/ops/gpu/gpu_ranks.h"
#include "tests/ops/kernels/element_types.h"
#include "tests/support/environment.h"
#include "tests/support/fake_gpu.h"
#include "tests/support/fake_nccl.h"
#include "tests/support/on_gpu.h"
#include "tests/support/thread_ranks.h"

namespace kolo {
namespace {

using testing::all;
using testing::error_text;
using testing::OnGpu;
using testing::run_ranks;
using testing::test_config;

struct GpuSession : testing::GpuRanks {
  ~GpuSession() override { testing::set_fake_gpus(8); }
};
INSTANTIATE_TEST_SUITE_P(Over, GpuSession, ::testing::Values("nccl", "blocking", "staged"),
                         [](const auto& info) { return info.param; });

TEST_P(GpuSession, HostWaits) {
  run_ranks(
      3,
      [&](Session& session) {
        EXPECT_EQ(session.device(), (Device{DeviceKind::cuda, session.rank()}));
        for (int turn = 0; turn < 20; ++turn) {
          OnGpu grad(session, all(1000, static_cast<float>(session.rank() + 1)));
          session.all_reduce("grad", grad.tensor(), {.op = ReduceOp::average, .ready = grad.stream()});
          EXPECT_EQ(grad.read(), all(1000, 2));
        }
      },
      config);
}

/// Many steps, with nothing but streams between them: the host runs ahead.
TEST_P(GpuSession, InAWorldFromAStore) {
  testing::TempFolder folder;
  FileStore store(folder.path());
  std::vector<std::jthread> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    ranks.emplace_back([&, rank] {
      Session session(store_world(store, rank, 3, config), config);
      const Group group = session.new_group(std::array{0, 2});  // launches of overlapping groups have to be ordered
      OnGpu values(session, all(1000, 1));
      for (int turn = 0; turn < 10; ++turn) {
        if (rank != 1)
          session.all_reduce("group", values.tensor(), {.op = ReduceOp::max, .group = group, .ready = values.stream()});
        session.all_reduce("all", values.tensor(), {.op = ReduceOp::average, .ready = values.stream()});
        EXPECT_EQ(values.read(), all(1000, 1));
      }
      OnGpu passed(session, all(10, static_cast<float>(rank)));
      if (rank == 0) session.send("x", passed.tensor(), 1, {.ready = passed.stream()});
      if (rank == 1) session.recv("x", passed.tensor(), 0, {.ready = passed.stream()});
      EXPECT_EQ(passed.read(), all(10, rank == 2 ? 2.0F : 0.0F));
    });
  }
}

/// Three ranks of two nodes that have only control connections in common, each with an ordered group of all.
void on_nodes_of_a_store(Config config, const std::function<void(Session&, const Group&)>& program) {
  if (config.gpu_backend != "nccl") GTEST_SKIP() << "what is staged travels between hosts";
  testing::TempFolder folder;
  FileStore store(folder.path());
  config.fake_nodes = "1,2";
  std::vector<std::jthread> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    ranks.emplace_back([&, rank] {
      Session session(store_world(store, rank, 3, config), config);
      program(session, session.new_group(std::array{0, 1, 2}, {.order = Order::program}));
    });
  }
}

/// Calls in order are negotiated there.
TEST_P(GpuSession, MatchedByOrderBetweenNodesOfAStore) {
  on_nodes_of_a_store(config, [](Session& session, const Group& group) {
    const int rank = session.rank();
    OnGpu values(session, all(1000, 1)), other(session, all(10, 1));
    for (int turn = 0; turn < 5; ++turn) {
      session.all_reduce(values.tensor(), {.op = ReduceOp::average, .group = group, .ready = values.stream()});
      EXPECT_EQ(values.read(), all(1000, 1));
      OnGpu mine(session, all(static_cast<std::size_t>(rank + 1), static_cast<float>(rank)));  // of different sizes
      OnGpu gathered(session, all(6, 9));
      session.all_gather(mine.tensor(), gathered.tensor(), {.group = group, .ready = gathered.stream()});
      EXPECT_EQ(gathered.read(), (std::vector<float>{0, 1, 1, 2, 2, 2}));
      session.barrier({.group = group});
      const NamedTensor together[] = {{"", values.tensor(), values.tensor()}, {"", other.tensor(), other.tensor()}};
      session.grouped_all_reduce_async(together, {.op = ReduceOp::average, .group = group, .ready = values.stream()})
          .wait();
      EXPECT_EQ(other.read(), all(10, 1));
      // the later tag first
      const int tags[] = {rank == 1 ? 2 : 1, rank == 1 ? 1 : 2};
      std::vector<Handle> moves;
      OnGpu first(session, all(4, static_cast<float>(tags[0]))), second(session, all(4, static_cast<float>(tags[1])));
      for (int i = 0; i < 2; ++i) {
        const OnGpu& tensor = i == 0 ? first : second;
        const PairOptions options{.group = group, .tag = tags[i], .ready = tensor.stream(), .priority = rank};
        Tensor square = tensor.tensor();
        square.shape = Shape{2, 2};
        if (rank == 0) moves.push_back(session.send_async(square, 1, options));
        if (rank == 1) moves.push_back(session.recv_async(tensor.tensor(), 0, options));
      }
      for (Handle& move : moves) move.wait();
      if (rank == 1) EXPECT_EQ(first.read(), all(4, 2));
      if (rank == 1) EXPECT_EQ(second.read(), all(4, 1));
    }
    float one = 1;
    const auto refused = [&](const std::function<void()>& call, ErrorCode code, std::string_view says) {
      const std::string text = error_text(call, code);
      EXPECT_NE(text.find(says), std::string::npos) << text;
    };
    refused([&] { session.all_reduce("x", values.tensor(), {.group = group}); }, ErrorCode::invalid_argument,
            "they have no name");
    refused([&] { session.recv_any(values.tensor(), {}, {.group = group}); }, ErrorCode::invalid_argument,
            "receive from one rank");
    refused([&] { session.all_reduce(view_scalar(one), {.group = group}); }, ErrorCode::backend,
            "start the program with mpirun");
    const bool fails = rank == 1;
    refused(
        [&] {
          if (fails) session.broadcast(values.tensor(), {.group = group, .ready = values.stream()});
          if (!fails) session.all_reduce(values.tensor(), {.group = group, .ready = values.stream()});
        },
        ErrorCode::mismatch, "broadcast");
    refused([&] { session.barrier(group); }, ErrorCode::mismatch, "broadcast");
    session.remove_group(group);
    const Group next = session.new_group(std::array{0, 1, 2}, {.order = Order::program});
    refused(
        [&] {
          if (fails) session.barrier(next);
          if (!fails) session.all_reduce(values.tensor(), {.group = next, .ready = values.stream()});
        },
        ErrorCode::mismatch, "barrier");
  });
}

/// A handle that dies waits: the calls of others keep their partners.
TEST_P(GpuSession, HandlesThatDieBetweenNodesOfAStore) {
  on_nodes_of_a_store(config, [](Session& session, const Group& group) {
    const int rank = session.rank();
    OnGpu first(session, all(10, 1)), second(session, all(10, 100));
    const auto reduce = [&](OnGpu& values) {
      return session.all_reduce_async(values.tensor(), {.group = group, .ready = values.stream()});
    };
    for (int turn = 0; turn < 3; ++turn) {
      if (rank == turn) std::this_thread::sleep_for(std::chrono::milliseconds(100));
      (void)reduce(first);  // the handle dies
      reduce(second).wait();
    }
    EXPECT_EQ(first.read(), all(10, 27));
    EXPECT_EQ(second.read(), all(10, 2700));
  });
}

/// A rank that does not come is named, and the group is over.
TEST_P(GpuSession, LateBetweenNodesOfAStore) {
  on_nodes_of_a_store(config, [](Session& session, const Group& group) {
    const int rank = session.rank();
    OnGpu values(session, all(1000, 1));
    const auto reduce = [&] {
      session.all_reduce(values.tensor(), {.group = group, .ready = values.stream(), .timeout_seconds = 0.2});
    };
    session.barrier({.group = group});
    if (rank == 2) std::this_thread::sleep_for(std::chrono::seconds(1));
    const std::string text = error_text(reduce, ErrorCode::stalled);
    EXPECT_NE(text.find("rank 2"), std::string::npos) << text;
    EXPECT_EQ(error_text(reduce, ErrorCode::stalled), text);
  });
}

TEST_P(GpuSession, StreamsWaitAndTheHostDoesNot) {
  run_ranks(
      3,
      [&](Session& session) {
        std::vector<std::unique_ptr<OnGpu>> grads;
        std::vector<TensorId> names;
        for (std::size_t i = 0; i < 10; ++i) {
          grads.push_back(std::make_unique<OnGpu>(session, all(100 + i, 1)));
          names.push_back(session.declare(fmt::format("grad {}", i)));
        }
        constexpr int steps = 6;
        for (int step = 0; step < steps; ++step) {
          std::vector<Handle> handles;
          for (std::size_t i = 0; i < grads.size(); ++i) {
            handles.push_back(session.all_reduce_async(names[i], grads[i]->tensor(), grads[i]->tensor(),
                                                       {.ready = grads[i]->stream()}));
          }
          for (std::size_t i = 0; i < grads.size(); ++i) handles[i].wait(grads[i]->stream());
        }
        float expected = 1;
        for (int step = 0; step < steps; ++step) expected *= 3;
        for (std::size_t i = 0; i < grads.size(); ++i) EXPECT_EQ(grads[i]->read(), all(100 + i, expected)) << i;
      },
      config);
}

/// What follows an operation finds its results in memory, though no stream and no thread has waited for it.
TEST_P(GpuSession, FunctionsFollowAndMemoryIsKept) {
  run_ranks(
      3,
      [&](Session& session) {
        std::atomic<int> told{0}, kept{0};
        for (int turn = 0; turn < 20; ++turn) {
          const std::string name = std::to_string(turn);
          auto grad = std::make_shared<OnGpu>(session, all(100, 1));
          OnGpu other(session, all(100, 1)), third(session, all(100, 1));
          std::vector<Handle> handles(2);
          auto handle = session.all_reduce_async("kept " + name, grad->tensor(), {.ready = grad->stream()});
          handles[0] = session.all_reduce_async("other " + name, other.tensor(), {.ready = other.stream()});
          handles[1] = session.all_reduce_async("third " + name, third.tensor(), {.ready = third.stream()});
          handle.on_done([&, grad](const Error* error) {
            EXPECT_EQ(error, nullptr);
            EXPECT_EQ(grad->read(), all(100, 3));
            ++told;
          });
          handles[1].on_done([&](const Error*) { ++told; });
          handle.detach(std::shared_ptr<const void>(nullptr, [&kept, grad](const void*) { ++kept; }));
          grad.reset();
          const std::size_t first = wait_any(handles);
          EXPECT_TRUE(handles[first].poll());
          handles[1].wait(third.stream());
          EXPECT_EQ(third.read(), all(100, 3));
          while (!handles[0].wait_until(std::chrono::steady_clock::now() + std::chrono::milliseconds(1))) continue;
          EXPECT_EQ(other.read(), all(100, 3));
        }
        session.close();
        EXPECT_EQ(told, 40);
        EXPECT_EQ(kept, 20);
      },
      config);
}

TEST_P(GpuSession, EveryOperation) {
  run_ranks(
      3,
      [&](Session& session) {
        const auto rank = static_cast<float>(session.rank());
        OnGpu mine(session, all(6, rank)), everybody(session, all(18, -1)), part(session, all(2, -1));
        const auto ready = [](OnGpu& tensor, OnGpu& other) {  // both are written on streams of their own
          cuda_gpu(tensor.tensor().device.index).mark(other.stream())->order(tensor.stream());
          return tensor.stream();
        };
        session.all_gather("gather", mine.tensor(), everybody.tensor(), {.ready = ready(mine, everybody)});
        std::vector<float> gathered;
        for (float other : {0.0f, 1.0f, 2.0f}) gathered.insert(gathered.end(), 6, other);
        EXPECT_EQ(everybody.read(), gathered);
        session.reduce_scatter("scatter", mine.tensor(), part.tensor(),
                               {.op = ReduceOp::max, .ready = ready(mine, part)});
        EXPECT_EQ(part.read(), all(2, 2));
        session.broadcast("broadcast", part.tensor(), {.root = 1, .ready = part.stream()});
        session.all_to_all("exchange", mine.tensor(), mine.tensor(), {.ready = mine.stream()});
        EXPECT_EQ(mine.read(), (std::vector<float>{0, 0, 1, 1, 2, 2}));
        session.all_reduce("adasum", part.tensor(), {.op = ReduceOp::adasum, .ready = part.stream()});
        EXPECT_EQ(part.read(), all(2, 2)) << "equal vectors give their average";
        if (session.rank() == 0) session.send("pair", part.tensor(), 2, {.ready = part.stream()});
        if (session.rank() == 2) session.recv("pair", part.tensor(), 0, {.ready = part.stream()});
        EXPECT_EQ(part.read(), all(2, 2));
        std::vector<float> host(5, rank);
        session.all_reduce("host", view(host));
        EXPECT_EQ(host, all(5, 3));
      },
      config);
}

/// Pairs and the world, in orders that differ from rank to rank: launches must not.
TEST_P(GpuSession, OverlappingGroupsInAnyOrder) {
  for (int turn = 0; turn < 5; ++turn) {
    run_ranks(
        3,
        [&](Session& session) {
          std::vector<Group> groups{session.world()};
          for (const auto& pair : {std::array{0, 1}, std::array{1, 2}, std::array{0, 2}})
            groups.push_back(session.new_group(pair));
          std::mt19937 random(static_cast<unsigned>(turn * 10 + session.rank()));
          for (int step = 0; step < 10; ++step) {
            std::vector<std::size_t> order{0, 1, 2, 3};
            std::shuffle(order.begin(), order.end(), random);
            std::vector<std::unique_ptr<OnGpu>> tensors;
            std::vector<std::pair<Handle, float>> handles;
            for (std::size_t group : order) {
              if (!groups[group].info()->member()) continue;
              tensors.push_back(std::make_unique<OnGpu>(session, all(50, 1)));
              handles.emplace_back(
                  session.all_reduce_async(fmt::format("x{}", group), tensors.back()->tensor(),
                                           {.group = groups[group], .ready = tensors.back()->stream()}),
                  group == 0 ? 3.0f : 2.0f);
            }
            for (std::size_t i = 0; i < handles.size(); ++i) {
              handles[i].first.wait(tensors[i]->stream());
              EXPECT_EQ(tensors[i]->read(), all(50, handles[i].second));
            }
          }
        },
        config);
  }
}

TEST_P(GpuSession, RanksJoin) {
  run_ranks(
      3,
      [&](Session& session) {
        for (int step = 0; step <= session.rank(); ++step) {
          OnGpu grad(session, all(3000, static_cast<float>(session.rank())));
          session.all_reduce("grad", grad.tensor(), {.op = ReduceOp::average, .ready = grad.stream()});
          EXPECT_EQ(grad.read(), all(3000, step == 0 ? 1.0f : step == 1 ? 1.5f : 2.0f));
        }
        session.join();
      },
      config);
}

TEST_P(GpuSession, ATensorOnAnotherRanksGpuIsAnAgreedError) {
  run_ranks(
      2,
      [&](Session& session) {
        OnGpu grad(session, all(10, 1));
        Tensor tensor = grad.tensor();
        if (session.rank() == 1) tensor.device.index = 5;
        EXPECT_EQ(
            error_text([&] { session.all_reduce("x", tensor, {.ready = grad.stream()}); }, ErrorCode::invalid_argument),
            "all_reduce 'x' in group world: rank 1: a tensor is on GPU 5, and this rank's GPU is 1 "
            "(Session::device()); move it there");
        session.all_reduce("x", grad.tensor(), {.ready = grad.stream()});
        EXPECT_EQ(grad.read(), all(10, 2));
      },
      config);
}

/// A program that captures a CUDA graph: kolo's threads leave it whole, and a captured stream is refused by name.
TEST_P(GpuSession, CapturesAreLeftWhole) {
  run_ranks(
      2,
      [&](Session& session) {
        auto& gpu = testing::fake_gpu(session.rank());
        OnGpu grad(session, all(1000, 1)), captured(session, all(10, 1));
        EXPECT_EQ(captured.read(), all(10, 1));
        gpu.begin_capture(captured.stream());
        session.all_reduce("grad", grad.tensor(), {.ready = grad.stream()});
        EXPECT_EQ(error_text([&] { session.all_reduce("x", captured.tensor(), {.ready = captured.stream()}); },
                             ErrorCode::invalid_argument),
                  "all_reduce 'x' in group world: ranks 0, 1: the stream 'ready' is being captured into a CUDA graph, "
                  "of which kolo's operations cannot be a part; submit before the capture begins or after it ends");
        Handle handle = session.all_reduce_async("grad", grad.tensor(), {.ready = grad.stream()});
        EXPECT_NE(error_text([&] { handle.wait(captured.stream()); }, ErrorCode::invalid_argument)
                      .find("a stream that is being captured"),
                  std::string::npos);
        handle.wait();
        EXPECT_EQ(grad.read(), all(1000, 4));
        EXPECT_TRUE(gpu.end_capture(captured.stream()));
        session.all_reduce("x", captured.tensor(), {.ready = captured.stream()});
        EXPECT_EQ(captured.read(), all(10, 2));
      },
      config);
}

/// A session that uses no GPU takes nothing of one.
TEST_P(GpuSession, TakesNothingOfAGpuThatItDoesNotUse) {
  for (int rank = 0; rank < 2; ++rank) testing::fake_gpu(rank).forget_context();
  run_ranks(
      2,
      [&](Session& session) {
        std::vector<float> values(100, 1);
        session.all_reduce("x", view(values), {});
        const std::array both{0, 1};
        const Group group = session.new_group(both);
        session.all_reduce("x", view(values), {.group = group});
        EXPECT_EQ(values, all(100, 4));
        EXPECT_FALSE(testing::fake_gpu(session.rank()).has_context());
        OnGpu grad(session, all(10, 1));
        session.all_reduce("grad", grad.tensor(), {.ready = grad.stream()});
        EXPECT_EQ(grad.read(), all(10, 2));
      },
      config);
}

std::ptrdiff_t calls_of(int rank, std::string_view start) {
  const auto log = testing::nccl_log(rank);
  return std::ranges::count_if(log, [&](const std::string& line) { return line.starts_with(start); });
}

/// …when a bucket of its own needs it.
TEST(GpuGroups, EachMakesItsCommunicatorOnce) {
  Config config = test_config();
  testing::set_fake_nccl({.in_progress = 80, .seed = 7});
  testing::clear_nccl_log();
  run_ranks(
      4,
      [&](Session& session) {
        const int rank = session.rank();
        const auto sum = [&](const std::string& name, const Group& group, float expected) {
          if (!group.info()->member()) return;
          OnGpu grad(session, all(100, static_cast<float>(rank + 1)));
          session.all_reduce(name, grad.tensor(), {.group = group, .ready = grad.stream()});
          EXPECT_EQ(grad.read(), all(100, expected)) << name;
        };
        const Group early = session.new_group(std::array{0, 1});
        sum("early", early, 3);
        sum("world", session.world(), 10);
        const Group pair = session.new_group(std::array{1, 3}), other = session.new_group(std::array{0, 2, 3});
        const Group removed = session.new_group(std::array{0, 1});
        const Group unused = session.new_group(std::array{0, 1, 2});
        session.remove_group(removed);
        for (int step = 0; step < 3; ++step) {
          sum("world", session.world(), 10);
          sum("pair", pair, 6);
          sum("other", other, 8);
        }
        const Group halves = session.split(rank % 2, -rank);
        sum("halves", halves, rank % 2 == 0 ? 4.0f : 6.0f);
        session.barrier();
      },
      config);
  for (int rank = 0; rank < 4; ++rank) {
    const std::vector<std::ptrdiff_t> inits{6, 6, 2, 1};  // by the rank's number in the communicator
    EXPECT_EQ(calls_of(rank, "init"), inits[static_cast<std::size_t>(rank)]) << rank;
  }
}

/// …to its end, and nobody waits for it.
TEST(GpuGroups, EndTheirCommunicatorsLater) {
  testing::set_fake_nccl({.in_progress = 80, .seed = 7});
  testing::clear_nccl_log();
  run_ranks(
      2,
      [&](Session& session) {
        const Group group = session.new_group(std::array{0, 1});
        OnGpu grad(session, all(100, 1));
        session.all_reduce("grad", grad.tensor(), {.group = group, .ready = grad.stream()});
        testing::hold_nccl_ends(true);
        session.barrier();
        session.remove_group(group);
        session.barrier();
        const auto soon = std::chrono::steady_clock::now() + std::chrono::seconds(20);
        while (calls_of(session.rank(), "finalize") == 0 && std::chrono::steady_clock::now() < soon)
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
        EXPECT_EQ(calls_of(session.rank(), "finalize"), 1);
        EXPECT_EQ(calls_of(session.rank(), "destroy") + calls_of(session.rank(), "abort"), 0);
        session.barrier();
        testing::hold_nccl_ends(false);
        const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
        while (calls_of(session.rank(), "destroy") == 0 && std::chrono::steady_clock::now() < deadline)
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
        EXPECT_EQ(calls_of(session.rank(), "destroy"), 1) << "without another operation";
        session.barrier();
      },
      test_config());
}

/// A rank's NCCL fails while groups are made and used: each is there afterwards.
TEST(GpuGroups, AreMadeAfterFailuresToo) {
  Config config = test_config();
  for (unsigned seed = 1; seed <= (sanitized ? 3 : 8); ++seed) {
    testing::set_fake_nccl({.in_progress = 80, .seed = seed});
    run_ranks(
        3,
        [&](Session& session) {
          const auto attempt = [&](const std::string& name, const Group& group) {
            if (!group.info()->member()) return true;
            OnGpu grad(session, all(50, 1));
            try {
              session.all_reduce(name, grad.tensor(), {.group = group, .ready = grad.stream()});
            } catch (const Error& error) {
              EXPECT_EQ(error.code(), ErrorCode::backend) << error.what();
              return false;
            }
            EXPECT_EQ(grad.read(), all(50, static_cast<float>(group.info()->size())));
            return true;
          };
          std::mt19937 random(seed * 10 + static_cast<unsigned>(session.rank()));
          attempt("world", session.world());
          if (random() % 2 == 0)
            testing::fail_nccl(session.rank(), NcclResult::remote_error, static_cast<int>(random() % 2));
          OnGpu grad(session, all(1 << 17, 1));  // runs, or fails, while the groups are made
          Handle running = session.all_reduce_async("running", grad.tensor(), {.ready = grad.stream()});
          const Group pair = session.new_group(std::array{0, 2}), all_of_them = session.new_group(std::array{0, 1, 2});
          if (random() % 3 == 0) testing::fail_nccl(session.rank(), NcclResult::system_error, 0);
          try {
            running.wait();
          } catch (const Error&) {
          }
          const bool ends = [&] {
            for (int turn = 0; turn < 10; ++turn) {
              float here = 1;  // the same attempts on every rank, whatever became of those before
              for (const Group& group : {session.world(), pair, all_of_them}) {
                if (!attempt("turn", group)) here = 0;
              }
              session.all_reduce("agree", Tensor{&here, Shape{1}, DType::f32, {}}, {.op = ReduceOp::min});
              if (here == 1) return true;
            }
            return false;
          }();
          EXPECT_TRUE(ends) << "groups that never work again, seed " << seed;
          session.barrier();
        },
        config);
    for (int rank = 0; rank < 3; ++rank) testing::fail_nccl(rank, NcclResult::success, 1 << 30);
  }
}

/// The host is done with the group, and the GPU is not.
TEST(GpuGroups, AreRemovedWhileAStreamWaits) {
  testing::set_fake_nccl({.in_progress = 80, .seed = 5});
  Config config = test_config();
  config.stall_report_seconds = 5;  // a rank under a sanitizer, beside others, may come seconds late
  config.stall_abort_seconds = 8;
  std::atomic<int> reports{0};
  config.report = [&](const std::string&) { ++reports; };
  run_ranks(
      2,
      [&](Session& session) {
        const Group group = session.new_group(std::array{0, 1});
        OnGpu grad(session, all(100, 1));
        const auto written = std::make_shared<std::atomic<bool>>(false);
        testing::fake_gpu(session.device().index).put(grad.stream(), [written] { return written->load(); });
        session.all_reduce_async("grad", grad.tensor(), {.group = group, .ready = grad.stream()}).wait(grad.stream());
        session.remove_group(group);
        float host = 1;
        session.all_reduce("host", view_scalar(host));
        *written = true;
        EXPECT_EQ(grad.read(), all(100, 2));
        std::this_thread::sleep_for(std::chrono::seconds(9));  // nothing is in flight any more
        EXPECT_NE(
            error_text([&] { session.all_reduce("host", view_scalar(host), {.group = group}); }, ErrorCode::closed)
                .find("the group was removed"),
            std::string::npos);
      },
      config);
  EXPECT_EQ(reports, 0);
}

double cpu_seconds_of_this_thread() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

TEST_P(GpuSession, ThreadsThatWaitForAStreamSleep) {
  run_ranks(
      2,
      [&](Session& session) {
        OnGpu first(session, all(10, 1)), second(session, all(10, 1));
        if (session.rank() == 1) std::this_thread::sleep_for(std::chrono::seconds(2));
        const auto sum = [&](const char* name, OnGpu& tensor) {
          session.all_reduce_async(name, tensor.tensor(), {.ready = tensor.stream()}).wait(tensor.stream());
          if (session.rank() == 0) {
            EXPECT_LT(cpu_seconds_of_this_thread(), 0.5) << "of two";
          }
        };
        std::thread other([&] { sum("first", first); });
        sum("second", second);
        other.join();
        EXPECT_EQ(first.read(), all(10, 2));
        EXPECT_EQ(second.read(), all(10, 2));
      },
      config);
}

/// …which is made when the first tensor comes, before the rank says that it is ready.
TEST_P(GpuSession, NoMemoryOnOneRankFailsOperationsByNameOnAllAndTheGroupGoesOn) {
  run_ranks(
      3,
      [&](Session& session) {
        const Group pair = session.new_group(std::array{0, 1});
        OnGpu grad(session, all(1000, 1)), other(session, all(1000, 1));
        for (const Group& group : {session.world(), pair}) {
          if (!group.info()->member()) continue;
          const auto members = static_cast<float>(group.info()->size());
          const bool has_none = group.info()->is_world();  // what was made for one group serves the next
          session.barrier(group);
          if (session.rank() == 1) testing::fake_gpu(1).fail_allocation_after(0);
          session.barrier(group);
          Handle first = session.all_reduce_async("grad", grad.tensor(), {.group = group, .ready = grad.stream()});
          Handle second = session.all_reduce_async("other", other.tensor(), {.group = group, .ready = other.stream()});
          const auto expect = [&](const char* name, Handle& handle) {
            if (!has_none) return handle.wait();
            const std::string text = error_text([&] { handle.wait(); }, ErrorCode::backend);
            EXPECT_TRUE(text.starts_with(
                fmt::format("all_reduce '{}' in group {}: rank 1: there is no ", name, group.info()->name)))
                << text;
            EXPECT_NE(text.find(GetParam() == "staged" ? "KOLO_GPU_STAGING_BYTES" : "KOLO_GPU_PACK_BYTES"),
                      std::string::npos)
                << text;
          };
          expect("grad", first);
          expect("other", second);
          session.barrier(group);
          if (session.rank() == 1) testing::fake_gpu(1).fail_allocation_after(1 << 30);
          session.barrier(group);
          for (int turn = 0; turn < 3; ++turn) {
            grad.write();
            session.all_reduce("grad", grad.tensor(), {.group = group, .ready = grad.stream()});
            EXPECT_EQ(grad.read(), all(1000, members));
          }
          grad.write();
        }
      },
      config);
  EXPECT_EQ(std::ranges::count(testing::nccl_log(0), "abort"), 0) << "no communicator is touched";
}

/// …by whatever ranks do, and however long: with timers that end runs, split buckets and break standstills.
TEST(GpuLayouts, AreTheSameWhateverTheDelays) {
  using namespace std::chrono_literals;
  Config config = test_config();
  config.gpu_pack_bytes = 1 << 20;
  testing::set_fake_nccl({});
  const auto lay = [&](const std::function<std::chrono::milliseconds(int rank, int step, int tensor)>& delay) {
    testing::clear_nccl_log();
    run_ranks(
        2,
        [&](Session& session) {
          std::vector<std::unique_ptr<OnGpu>> grads;
          for (std::size_t i = 0; i < 5; ++i) grads.push_back(std::make_unique<OnGpu>(session, all(10 << i, 1)));
          float host = 1;
          for (int step = 0; step < 4; ++step) {
            std::vector<Handle> handles;
            for (int i = 0; i < 5; ++i) {
              OnGpu& grad = *grads[static_cast<std::size_t>(i)];
              handles.push_back(session.all_reduce_async(fmt::format("grad {}", i), grad.tensor(),
                                                         {.op = ReduceOp::average, .ready = grad.stream()}));
              std::this_thread::sleep_for(delay(session.rank(), step, i));
              if (i == 3 && step == 2) session.all_reduce("host", view_scalar(host));
            }
            for (Handle& handle : handles) handle.wait();
          }
        },
        config);
    std::vector<std::string> calls = testing::nccl_log(0);
    std::erase_if(calls, [](const std::string& line) { return !line.starts_with("all_reduce"); });
    return calls;
  };
  const auto expected = lay([](int, int, int) { return 0ms; });
  EXPECT_EQ(expected,
            (std::vector<std::string>{"all_reduce 10 7 op 4", "all_reduce 20 7 op 4", "all_reduce 40 7 op 4",
                                      "all_reduce 80 7 op 4", "all_reduce 160 7 op 4",  // new: each alone
                                      "all_reduce 310 7 op 4", "all_reduce 150 7 op 4", "all_reduce 160 7 op 4",
                                      "all_reduce 150 7 op 4", "all_reduce 160 7 op 4"}))
      << "a wait in the middle splits, for some steps";
  for (const int slow : {0, 1}) {
    EXPECT_EQ(lay([&](int rank, int step, int) { return rank == slow && step < 2 ? 40ms : 0ms; }), expected) << slow;
    EXPECT_EQ(lay([&](int rank, int step, int tensor) {
                return rank == slow && tensor == step ? (step == 1 ? 2500ms : 200ms) : 0ms;
              }),
              expected)
        << slow;
  }
}

/// A program that waits for another one behind kolo's back, with a part of a bucket: else it would wait for ever.
TEST(GpuLayouts, OfAProgramThatKeepsAPartForTenSecondsOrBeyondATimeOutAreGivenUp) {
  testing::set_fake_nccl({});
  for (const double timeout : {0.0, 1.0}) {
    std::latch told(1);
    run_ranks(
        2,
        [&](Session& session) {
          OnGpu a(session, all(10, 1)), b(session, all(10, 1));
          const auto most = [&](const char* name, OnGpu& tensor, double seconds) {
            return session.all_reduce_async(
                name, tensor.tensor(), {.op = ReduceOp::max, .ready = tensor.stream(), .timeout_seconds = seconds});
          };
          for (int step = 0; step < 4; ++step) {
            Handle first = most("a", a, timeout);
            if (session.rank() == 0 && step == 2) told.wait();
            Handle second = most("b", b, 0);
            first.wait();
            if (session.rank() == 1 && step == 2) told.count_down();
            second.wait();
          }
        },
        test_config());
  }
}

struct GpuFailures : GpuSession {};
INSTANTIATE_TEST_SUITE_P(Over, GpuFailures, ::testing::Values("nccl", "blocking"),
                         [](const auto& info) { return info.param; });

/// An error of one rank's NCCL becomes that of the operation on every rank; the next one makes a new communicator.
TEST_P(GpuFailures, AnAsynchronousErrorIsAgreedAndTheGroupGoesOn) {
  run_ranks(
      3,
      [&](Session& session) {
        OnGpu grad(session, all(100, 1));
        std::vector<float> host(3, 1);
        for (int round = 0; round < 3; ++round) {
          if (session.rank() == 1) {
            testing::hang_nccl(1, true);
            testing::fail_nccl(1, NcclResult::remote_error);
          }
          session.barrier();
          const std::string text = error_text(
              [&] { session.all_reduce("grad", grad.tensor(), {.ready = grad.stream()}); }, ErrorCode::backend);
          EXPECT_NE(text.find("remote process exited; last words"), std::string::npos) << text;
          session.all_reduce("host", view(host));  // the group serves other tensors as ever
          if (session.rank() == 1) testing::hang_nccl(1, false);
          session.barrier();
          grad.write();
          session.all_reduce("grad", grad.tensor(), {.ready = grad.stream()});
          EXPECT_EQ(grad.read(), all(100, 3));
        }
        EXPECT_EQ(std::ranges::count(testing::nccl_log(session.rank()), "abort"), 3);
        EXPECT_EQ(std::ranges::count(testing::nccl_log(session.rank()), "init 3"), 4) << "made anew";
      },
      config);
}

TEST_P(GpuFailures, FunctionsLearnOfThemAndSoDoesTheNextWait) {
  run_ranks(
      2,
      [&](Session& session) {
        OnGpu grad(session, all(100, 1));
        if (session.rank() == 1) {
          testing::hang_nccl(1, true);
          testing::fail_nccl(1, NcclResult::remote_error);
        }
        session.barrier();
        std::string told;
        std::latch done(1);
        auto handle = session.all_reduce_async("grad", grad.tensor(), {.ready = grad.stream()});
        handle.on_done([&](const Error* error) { told = error ? error->what() : "no error"; });
        handle.detach(std::shared_ptr<const void>(
            &done, [](const void* latch) { static_cast<std::latch*>(const_cast<void*>(latch))->count_down(); }));
        done.wait();
        EXPECT_NE(told.find("remote process exited; last words"), std::string::npos) << told;
        EXPECT_EQ(error_text([&] { session.barrier(); }, ErrorCode::backend), told);
        if (session.rank() == 1) testing::hang_nccl(1, false);
        session.barrier();
        grad.write();
        session.all_reduce("grad", grad.tensor(), {.ready = grad.stream()});
        EXPECT_EQ(grad.read(), all(100, 2));
      },
      config);
}

TEST_P(GpuFailures, WhatTheProgramLeftToItsStreamFailsAtTheNextWait) {
  run_ranks(
      2,
      [&](Session& session) {
        OnGpu grad(session, all(100, 1));
        if (session.rank() == 0) {
          testing::hang_nccl(0, true);
          testing::fail_nccl(0, NcclResult::system_error, 0);
        }
        session.barrier();
        std::string text;
        int errors = 0;
        const auto attempt = [&](const std::function<void()>& call) {
          try {
            call();
          } catch (const Error& error) {
            text = error.what();
            ++errors;
          }
        };
        attempt([&] { session.all_reduce_async("grad", grad.tensor(), {.ready = grad.stream()}).wait(grad.stream()); });
        // The failure is noticed when the backend is next asked, and the host's operations are faster than that: the
        // ranks go on until each has been told, and then some more.
        const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
        for (int after = 0; after < 200;) {
          std::vector<float> host = {static_cast<float>(errors), 1, 1};
          host[1] = std::chrono::steady_clock::now() < deadline ? 1 : 0;
          attempt([&] { session.all_reduce("host", view(host)); });
          EXPECT_EQ(host[2], 2) << "what throws another's error is complete itself";
          if (host[0] == 2 || host[1] < 2) ++after;
        }
        EXPECT_EQ(errors, 1);
        EXPECT_NE(text.find("NCCL"), std::string::npos) << text;
        if (session.rank() == 0) testing::hang_nccl(0, false);
      },
      config);
}

/// A rank that is gone: the others' communicators are ended, so that no GPU goes on waiting for it.
TEST_P(GpuFailures, ARankThatLeavesInTheMiddleEndsEverybodysCommunicator) {
  testing::hang_nccl(0, true);
  run_ranks(
      3,
      [&](Session& session) {
        OnGpu grad(session, all(100, 1));
        if (session.rank() == 0) {
          session.all_reduce_async("grad", grad.tensor(), {.ready = grad.stream()}).wait(grad.stream());
          return session.abandon();
        }
        EXPECT_NE(error_text([&] { session.all_reduce("grad", grad.tensor(), {.ready = grad.stream()}); },
                             ErrorCode::aborted),
                  "");
      },
      config);
  testing::hang_nccl(0, false);
  for (int rank = 1; rank < 3; ++rank) {
    const auto log = testing::nccl_log(rank);
    EXPECT_EQ(std::ranges::count(log, "abort"), std::ranges::count(log, "init 3")) << rank;
    EXPECT_EQ(std::ranges::count(log, "destroy"), 0) << "that would wait for the one that is gone";
  }
}

/// NCCL may notice first, and does not know which rank it is.
TEST_P(GpuFailures, WhatNcclSaysOfARankThatIsGoneWaitsForWordOfThatRank) {
  testing::hang_nccl(0, true);
  run_ranks(
      3,
      [&](Session& session) {
        OnGpu grad(session, all(100, 1));
        Handle handle = session.all_reduce_async("grad", grad.tensor(), {.ready = grad.stream()});
        session.barrier();
        if (session.rank() == 0) {
          std::this_thread::sleep_for(std::chrono::milliseconds(100));
          return session.abandon();
        }
        testing::fail_nccl(session.rank(), NcclResult::remote_error, 0);
        const std::string text = error_text([&] { handle.wait(); }, ErrorCode::aborted);
        EXPECT_NE(text.find("rank 0"), std::string::npos) << text;
        EXPECT_EQ(text.find("NCCL"), std::string::npos) << text;
      },
      config);
  testing::hang_nccl(0, false);
}

/// Failures at random moments, among operations of overlapping groups: everybody gets results or errors, and nobody
/// hangs.
TEST_P(GpuFailures, AtRandomMoments) {
  for (unsigned seed = 1; seed <= (sanitized ? 2 : 8); ++seed) {
    run_ranks(
        3,
        [&](Session& session) {
          std::mt19937 random(seed * 10 + static_cast<unsigned>(session.rank()));
          const Group pair = session.new_group(std::array{0, 1});
          std::vector<std::unique_ptr<OnGpu>> tensors;
          for (int step = 0; step < 12; ++step) {
            if (random() % 4 == 0)
              testing::fail_nccl(session.rank(), NcclResult::internal_error, static_cast<int>(random() % 3));
            std::vector<Handle> handles;
            for (int i = 0; i < 3; ++i) {
              tensors.push_back(std::make_unique<OnGpu>(session, all(i == 2 ? 1 << 17 : 64, 1)));  // in both lanes
              const bool in_pair = i == 1;
              if (in_pair && session.rank() == 2) continue;
              handles.push_back(session.all_reduce_async(
                  fmt::format("x{}", i), tensors.back()->tensor(),
                  {.group = in_pair ? pair : session.world(), .ready = tensors.back()->stream()}));
            }
            for (Handle& handle : handles) {
              try {
                handle.wait();
              } catch (const Error& error) {
                EXPECT_EQ(error.code(), ErrorCode::backend) << error.what();
              }
            }
          }
          session.barrier();
        },
        config);
  }
}

/// What a rank does whose peer's GPU never takes part; `blocked`: and whose own NCCL does not return either. Ends the
/// process.
void run_until_stall(bool blocked) {
  testing::set_fake_nccl({.in_progress = 0, .seed = 1, .loud = true});
  if (blocked)
    for (int rank : {0, 1}) testing::block_nccl(rank);
  else
    testing::hang_nccl(1, true);
  Config config;
  config.gpu_pack_bytes = 1 << 20;
  config.nccl_blocking = !blocked;  // else a call that does not return is a helper's
  config.stall_report_seconds = 0.2;
  config.stall_abort_seconds = 0.6;
  run_ranks(
      2,
      [&](Session& session) {
        OnGpu grad(session, all(100, 1));
        session.all_reduce("grad", grad.tensor(), {.ready = grad.stream()});
      },
      config);
}

TEST(GpuStallDeathTest, ACollectiveThatNeverEndsIsAbortedAndEndsTheJob) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(run_until_stall(false), ::testing::ExitedWithCode(72),
              "all_reduce 'grad' .*ending the job(.|\n)*fake: rank [01] aborts");
}

TEST(GpuStallDeathTest, ACallThatNeverReturnsEndsTheJobASecondLater) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(run_until_stall(true), ::testing::ExitedWithCode(72),
              "rank [01]: what runs on its GPU was not ended within a second .a call of NCCL or CUDA does not return.");
}

TEST_P(GpuFailures, AnErrorOfTheGpuIsAgreedAndTheGroupGoesOn) {
  run_ranks(
      2,
      [&](Session& session) {
        OnGpu grad(session, all(100, 1));
        session.all_reduce("grad", grad.tensor(), {.ready = grad.stream()});
        auto& gpu = testing::fake_gpu(session.device().index);
        for (int round = 0; round < 3; ++round) {
          Handle handle;
          if (session.rank() == 1) {  // after the submission has marked its stream
            testing::hang_nccl(1, true);
            handle = session.all_reduce_async("grad", grad.tensor(), {.ready = grad.stream()});
            gpu.fail("a kernel failed (an illegal memory access was encountered)");
          } else {
            handle = session.all_reduce_async("grad", grad.tensor(), {.ready = grad.stream()});
          }
          const std::string text = error_text([&] { handle.wait(); }, ErrorCode::backend);
          EXPECT_NE(text.find("illegal memory access"), std::string::npos) << text;
          if (session.rank() == 1) {
            gpu.fail("");
            testing::hang_nccl(1, false);
          }
          session.barrier();
          grad.write();
          session.all_reduce("grad", grad.tensor(), {.ready = grad.stream()});
          EXPECT_EQ(grad.read(), all(100, 2));
        }
      },
      config);
}

TEST(GpuPlaces, ChooseAndReport) {
  const Config config = test_config();
  GpuIdentity place{.host = "a",
                    .nccl_host = "a",
                    .gpu = 0,
                    .facts = {"H100", "0000:01:00.0", 1, std::size_t{80} << 30},
                    .nccl_version = 22809};
  std::vector<GpuIdentity> places{place, place};
  places[1].facts.bus = "0000:02:00.0";
  EXPECT_TRUE(choose_gpu_backends(config, places).nccl);
  EXPECT_EQ(gpu_table(places, choose_gpu_backends(config, places))[1],
            "  rank   0  host a  GPU 0 0000:01:00.0 H100 (80 GiB)  NUMA node 1");
  Writer message;
  put(message, places[1]);
  Reader reader(message.bytes());
  EXPECT_EQ(get_gpu_identity(reader).facts.bus, places[1].facts.bus);

  places[1].facts.bus = places[0].facts.bus;
  EXPECT_EQ(choose_gpu_backends(config, places).note,
            "tensors on GPUs travel through host memory, which is slow (several ranks on a share GPU "
            "0000:01:00.0, which NCCL refuses; start no more ranks than GPUs)");
  places[1].nccl_host = "a, the other";  // NCCL_HOSTID
  EXPECT_TRUE(choose_gpu_backends(config, places).nccl);
  places[1].nccl_version = 0;
  places[1].why_no_nccl = "NCCL cannot be loaded";
  EXPECT_FALSE(choose_gpu_backends(config, places).nccl);
  EXPECT_NE(choose_gpu_backends(config, places).note.find("rank 1 on a: NCCL cannot be loaded"), std::string::npos);
  Config asked = config;
  asked.gpu_backend = "nccl";
  EXPECT_THROW(choose_gpu_backends(asked, places), Error);
  places[1].gpu = -1;
  EXPECT_EQ(choose_gpu_backends(config, places).note, "tensors on GPUs cannot be used (rank 1 on a sees no GPU)");
  places[0].gpu = -1;
  EXPECT_EQ(choose_gpu_backends(config, places).note, "") << "a machine without GPUs is no surprise";
}

TEST(GpuPlaces, VersionsOfNcclThatDifferAreRefused) {
  GpuIdentity place{.host = "a", .nccl_host = "a", .gpu = 0, .facts = {"H100", "0000:01:00.0"}, .nccl_version = 22809};
  std::vector<GpuIdentity> places{place, place};
  places[1].facts.bus = "0000:02:00.0";
  places[1].nccl_version = 22803;
  const GpuChoice choice = choose_gpu_backends(test_config(), places);
  EXPECT_TRUE(choice.usable && !choice.nccl) << "NCCL compares them to the patch";
  EXPECT_EQ(choice.note,
            "tensors on GPUs travel through host memory, which is slow (rank 0 loads NCCL 2.28.9, and rank 1 on a "
            "2.28.3; install one version on all hosts)");
}

TEST(GpuPlaces, SettingsReachNccl) {
  testing::set_fake_nccl({});
  const auto tuning = [](const std::function<void(Config&)>& set) {
    Config config = test_config();
    config.gpu_pack_bytes = 1 << 20;
    set(config);
    const NcclTuning made = find_gpu(config, "a", 0).nccl->tuning;
    return std::tuple(made.staging_bytes, made.direct_bytes, made.wide_halves, made.register_memory, made.timed);
  };
  EXPECT_TRUE(find_gpu(test_config(), "a", 0).nccl->tuning.blocking);
  Config other = test_config();
  other.nccl_blocking = false;
  EXPECT_FALSE(find_gpu(other, "a", 0).nccl->tuning.blocking);
  constexpr std::int64_t mib = 1 << 20;
  EXPECT_EQ(tuning([](Config&) {}), std::tuple(mib, 2 * mib, false, false, false));
  EXPECT_EQ(tuning([](Config& c) { c.gpu_pack_bytes = 300'000; }), std::tuple(299'776, 2 * mib, false, false, false));
  EXPECT_EQ(tuning([](Config& c) { c.gpu_pack_bytes = 1; }), std::tuple(65'536, 2 * mib, false, false, false));
  EXPECT_EQ(tuning([](Config& c) { c.gpu_direct_bytes = 12'345; }), std::tuple(mib, 12'345, false, false, false));
  EXPECT_EQ(tuning([](Config& c) { c.nccl_wire = "f32"; }), std::tuple(mib, 2 * mib, true, false, false));
  EXPECT_EQ(tuning([](Config& c) { c.nccl_register = true; }), std::tuple(mib, 2 * mib, false, true, false));
  EXPECT_EQ(tuning([](Config& c) { c.timings = true; }), std::tuple(mib, 2 * mib, false, false, true));
}

/// NCCL has no other way than the environment, which is the launcher's.
TEST(GpuPlaces, AnAlgorithmThatNcclHasNotBeenToldIsRefusedOnEveryRank) {
  const auto answer = [](const std::string& algo, int version, const std::string& known = "") {
    const GpuIdentity first{.host = "a", .nccl_host = "a", .nccl_algo = "ring", .gpu = 0, .nccl_version = version};
    GpuIdentity second = first;
    second.nccl_algo = known;
    second.facts.bus = "another";
    Config config = test_config();
    config.nccl_algo = algo;
    const auto choose = [&] { EXPECT_TRUE(choose_gpu_backends(config, std::vector{first, second}).nccl); };
    if (algo == "auto" || !known.empty()) return choose(), std::string();
    return error_text(choose, ErrorCode::invalid_argument);
  };
  EXPECT_EQ(answer("auto", 22809), "");
  EXPECT_EQ(answer("ring", 22809),
            "KOLO_NCCL_ALGO is 'ring', which NCCL learns from NCCL_ALGO only, and rank 1 on a has none; start every "
            "rank with it: mpirun -x NCCL_ALGO=allreduce:ring");
  EXPECT_TRUE(answer("nvls", 22809).ends_with("NCCL_ALGO=allreduce:nvls,nvlstree"));
  EXPECT_TRUE(answer("tree", 22400).ends_with("NCCL_ALGO=allreduce:tree"));
  EXPECT_TRUE(answer("tree", 22399).ends_with("NCCL_ALGO=tree"));
  EXPECT_EQ(answer("ring", 22809, "tree"), "") << "a person's own";

  testing::set_fake_nccl({});
  setenv("NCCL_ALGO", "tree", 1);
  EXPECT_EQ(find_gpu(test_config(), "a", 0).identity.nccl_algo, "tree");
  unsetenv("NCCL_ALGO");
  Config asked = test_config();
  asked.nccl_algo = "ring";
  EXPECT_EQ(find_gpu(asked, "a", 0).identity.nccl_algo, "") << "the environment is left as it is";
}

/// What three ranks make.
struct MadeBackends {
  explicit MadeBackends(const std::function<void(Config&)>& set) {
    Config config = test_config();
    config.gpu_pack_bytes = 1 << 16;
    config.gpu_staging_bytes = 1 << 20;
    config.report = [](const std::string&) {};
    set(config);
    GroupInfo world{.name = "world", .ranks = {0, 1, 2}};
    std::vector<GpuShare> shares;
    std::vector<GpuIdentity> places;
    for (int rank = 0; rank < world.size(); ++rank) {
      shares.push_back(find_gpu(config, "a", rank));
      places.push_back(shares.back().identity);
    }
    const std::size_t before = testing::fake_gpu(0).memory_use().used;
    for (world.rank = 0; world.rank < world.size(); ++world.rank) {
      const auto host = [rank = static_cast<std::size_t>(world.rank)] {
        return std::move(local_backends(3, {})[rank]);
      };
      const auto list = [this, host] {
        ++lists_of_hosts;
        BackendList hosts;
        hosts.push_back(host());
        return hosts;
      };
      all.push_back(
          gpu_backends(config, shares[static_cast<std::size_t>(world.rank)], places, world, GpuHosts{list, host}));
    }
    bytes = testing::fake_gpu(0).memory_use().used - before;
    for (const auto& backend : all[0]) names.emplace_back(backend->name());
  }
  std::vector<BackendList> all;
  std::vector<std::string> names;
  int lists_of_hosts = 0;  ///< of all ranks
  std::size_t bytes = 0;   ///< of rank 0
};

TEST(GpuPlaces, SettingsChooseTheBackends) {
  testing::set_fake_nccl({});
  const auto made = [](const std::string& backend) {
    return MadeBackends([&](Config& config) { config.gpu_backend = backend; });
  };
  using Names = std::vector<std::string>;
  for (const std::string& backend : {std::string("auto"), std::string("staged")}) {
    const MadeBackends found = made(backend);
    EXPECT_EQ(found.names, backend == "auto" ? Names({"nccl", "staged"}) : Names({"staged"}));
    EXPECT_EQ(found.lists_of_hosts, 3) << backend;
    EXPECT_EQ(found.bytes, 0u) << backend << ": memory is made on first use";
  }
}

TEST(GpuPlaces, WithoutNcclEverythingIsStaged) {
  testing::set_fake_nccl({.available = false});
  Config config = test_config();
  std::mutex mutex;
  std::vector<std::string> lines;
  config.report = [&](const std::string& line) {
    const std::lock_guard lock(mutex);
    lines.push_back(line);
  };
  run_ranks(
      2,
      [&](Session& session) {
        OnGpu grad(session, all(100'000, 1));
        session.all_reduce("grad", grad.tensor(), {.ready = grad.stream()});
        EXPECT_EQ(grad.read(), all(100'000, 2));
      },
      config);
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_NE(lines[0].find("through host memory, which is slow (rank 0 on "), std::string::npos) << lines[0];
  testing::set_fake_nccl({});
}

/// Hosts of one name are several machines, and containers of several names may be on one.
TEST(GpuPlaces, MachinesAreToldApartByTheirBoots) {
  testing::set_fake_nccl({});
  const GpuIdentity one = find_gpu(test_config(), "a", 0).identity;
  std::vector<GpuIdentity> places{one, find_gpu(test_config(), "b", 8).identity};
  EXPECT_FALSE(choose_gpu_backends(test_config(), places).nccl) << "one card, in two containers";
  places[1].host = "a";
  places[1].nccl_host = "another boot";
  EXPECT_TRUE(choose_gpu_backends(test_config(), places).nccl) << "two machines of one name";
  setenv("NCCL_HOSTID", "mine", 1);
  EXPECT_EQ(find_gpu(test_config(), "a", 0).identity.nccl_host, "mine");
  unsetenv("NCCL_HOSTID");
}

/// Pretended nodes are on one machine.
TEST(GpuPlaces, CardsAreDealtByTheRealNode) {
  testing::set_fake_nccl({});
  testing::TempFolder folder;
  FileStore store(folder.path());
  Config config = test_config();
  config.fake_nodes = "1,2";
  std::vector<std::jthread> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    ranks.emplace_back([&, rank] {
      Session session(store_world(store, rank, 3, config), config);
      EXPECT_EQ(session.device(), (Device{DeviceKind::cuda, rank}));
      OnGpu values(session, all(10, 1));
      session.all_reduce("all", values.tensor(), {.ready = values.stream()});
      EXPECT_EQ(values.read(), all(10, 3));
    });
  }
}

TEST(GpuPlaces, MoreRanksThanGpusAreStaged) {
  testing::set_fake_gpus(1);
  testing::set_fake_nccl({});
  Config config = test_config();
  config.report = [](const std::string&) {};
  run_ranks(
      3,
      [&](Session& session) {
        EXPECT_EQ(session.device().index, 0);
        OnGpu grad(session, all(10, 1));
        session.all_reduce("grad", grad.tensor(), {.ready = grad.stream()});
        EXPECT_EQ(grad.read(), all(10, 3));
      },
      config);
  testing::set_fake_gpus(8);
}

}  // namespace
}  // namespace kolo
