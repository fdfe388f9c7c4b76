// Sends and receives by tag of tensors on GPUs, over fake GPUs and a fake NCCL: ranks are threads.

#include <fmt/format.h>
#include <kolo/session.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <numeric>
#include <random>
#include <thread>

#include "tests/ops/gpu/gpu_ranks.h"
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

struct GpuPairsByTag : testing::GpuRanks {};
INSTANTIATE_TEST_SUITE_P(Over, GpuPairsByTag, ::testing::Values("nccl", "staged"),
                         [](const auto& info) { return info.param; });

Group ordered_group(Session& session) {
  return session.new_group(session.world().info()->ranks, {.order = Order::program});
}

/// Both directions at once, several tags, in other orders on either side; of sizes and types.
TEST_P(GpuPairsByTag, InAnyOrder) {
  for (unsigned seed = 1; seed <= 4; ++seed) {
    run_ranks(
        3,
        [&](Session& session) {
          const int rank = session.rank(), next = (rank + 1) % 3, before = (rank + 2) % 3;
          const Group group = ordered_group(session);
          std::mt19937 random(seed * 10 + static_cast<unsigned>(rank));
          for (int step = 0; step < 4; ++step) {
            std::vector<int> order(12);
            std::iota(order.begin(), order.end(), 0);
            std::shuffle(order.begin(), order.end(), random);
            struct Running {
              std::unique_ptr<OnGpu> tensor;
              Handle handle;
              float wanted;
              std::size_t count;
            };
            std::vector<Running> all_of_them;
            for (const int what : order) {
              const int tag = what / 4, kind = what % 4;
              const std::size_t count =
                  std::array{std::size_t{1}, std::size_t{700}, std::size_t{40'000}}[static_cast<std::size_t>(tag)];
              const bool sends = kind < 2;
              const int other = kind % 2 == 0 ? next : before;
              const auto value = static_cast<float>(100 * tag + (sends ? rank : other));
              auto tensor = std::make_unique<OnGpu>(session, all(count, sends ? value : -1));
              const PairOptions options{.group = group, .tag = tag, .ready = tensor->stream()};
              Handle handle = sends ? session.send_async(tensor->tensor(), other, options)
                                    : session.recv_async(tensor->tensor(), other, options);
              all_of_them.push_back({std::move(tensor), std::move(handle), value, count});
            }
            for (Running& one : all_of_them) {
              one.handle.wait(one.tensor->stream());
              EXPECT_EQ(one.tensor->read(), all(one.count, one.wanted)) << "seed " << seed;
            }
          }
        },
        config);
  }
}

/// …and any rank, of messages that are shorter; beside tensors in host memory of the same group.
TEST_P(GpuPairsByTag, FromAnyRank) {
  run_ranks(
      3,
      [&](Session& session) {
        const int rank = session.rank();
        const Group group = ordered_group(session);
        const std::array tags{4, 5};
        if (rank == 0) {
          for (int i = 0; i < 4; ++i) {
            OnGpu tensor(session, all(100, -1));
            const Received got = session.recv_any(tensor.tensor(), tags, {.group = group, .ready = tensor.stream()});
            EXPECT_EQ(got.bytes, (got.tag == 4 ? 100u : 30u) * sizeof(float));
            auto found = tensor.read();
            found.resize(got.bytes / sizeof(float));
            EXPECT_EQ(found, all(found.size(), static_cast<float>(10 * got.source + got.tag)));
          }
        } else {
          for (const int tag : tags) {
            OnGpu tensor(session, all(tag == 4 ? 100 : 30, static_cast<float>(10 * rank + tag)));
            session.send(tensor.tensor(), 0, {.group = group, .tag = tag, .ready = tensor.stream()});
          }
        }
        float host = static_cast<float>(rank);
        if (rank == 1) session.send(view_scalar(host), 2, {.group = group});
        if (rank == 2) session.recv(view_scalar(host), 1, {.group = group});
        EXPECT_EQ(host, rank == 2 ? 1 : static_cast<float>(rank));
        OnGpu tensor(session, all(1, 1));
        const auto mixed = [&] {
          if (rank == 1) session.send(view_scalar(host), 2, {.group = group});
          if (rank == 2) session.recv(tensor.tensor(), 1, {.group = group, .ready = tensor.stream()});
        };
        if (rank == 0) return;
        const std::string text = error_text(mixed, ErrorCode::mismatch);
        EXPECT_NE(text.find("rank 1 sends 4 bytes of f32, rank 2 receives 4 bytes of f32 on a GPU"), text.npos) << text;
      },
      config);
}

/// …of every type and of none, also of other shapes on either side.
TEST_P(GpuPairsByTag, OfAnyTypeAndSize) {
  run_ranks(
      2,
      [&](Session& session) {
        const Group group = ordered_group(session);
        for (const DType dtype : {DType::i16, DType::boolean, DType::bf16, DType::u64, DType::f32}) {
          for (const std::int64_t count : {0, 1, 333}) {
            OnGpu memory(session, all(1000, static_cast<float>(1 - session.rank())));
            Tensor tensor = memory.tensor();
            tensor.dtype = dtype;
            tensor.shape = session.rank() == 0 ? Shape{count} : Shape{1, count};
            if (count == 0 && session.rank() == 0) tensor.data = nullptr;
            const PairOptions options{.group = group, .tag = 2, .ready = memory.stream()};
            if (session.rank() == 0) session.send(tensor, 1, options);
            if (session.rank() == 1) session.recv(tensor, 0, options);
            const auto words = static_cast<std::size_t>(count) * size_of(dtype) / sizeof(float);
            const auto found = memory.read();
            EXPECT_EQ(std::vector(found.begin(), found.begin() + static_cast<std::ptrdiff_t>(words)), all(words, 1));
            EXPECT_EQ(found.back(), static_cast<float>(1 - session.rank())) << "what lies behind it";
          }
        }
      },
      config);
}

/// …in batches, whose order is another one on either side; of tensors in host memory, too.
TEST_P(GpuPairsByTag, InBatches) {
  constexpr int tags = 6;
  for (unsigned seed = 1; seed <= 6; ++seed) {
    run_ranks(
        2,
        [&](Session& session) {
          const int rank = session.rank(), other = 1 - rank;
          const Group group = ordered_group(session);
          std::mt19937 random(seed * 10 + static_cast<unsigned>(rank));
          std::vector<std::unique_ptr<OnGpu>> on_gpu;
          std::vector<std::vector<float>> host;
          std::vector<PairOperation> operations;
          const auto value_of = [](int from, int tag) { return static_cast<float>(10 * from + tag); };
          for (int tag = 0; tag < tags; ++tag) {
            for (const bool sends : {true, false}) {
              const auto count = static_cast<std::size_t>(1 + 3000 * tag);
              on_gpu.push_back(std::make_unique<OnGpu>(session, all(count, sends ? value_of(rank, tag) : -1)));
              host.push_back(all(count, sends ? value_of(rank, tag) : -1));
              operations.push_back({.sends = sends, .tensor = on_gpu.back()->tensor(), .peer = other, .tag = tag});
              operations.push_back({.sends = sends, .tensor = view(host.back()), .peer = other, .tag = tags + tag});
            }
          }
          for (const auto& one : on_gpu) (void)one->read();  // all is there, whichever stream wrote it
          std::shuffle(operations.begin(), operations.end(), random);
          session.batch(operations, {.group = group, .ready = on_gpu.front()->stream()});
          for (std::size_t i = 0; i < on_gpu.size(); ++i) {
            const float wanted = value_of(i % 2 == 0 ? rank : other, static_cast<int>(i / 2));
            EXPECT_EQ(on_gpu[i]->read(), all(on_gpu[i]->read().size(), wanted)) << "seed " << seed;
            EXPECT_EQ(host[i], all(host[i].size(), wanted)) << "seed " << seed;
          }
        },
        config);
  }
}

/// Sends and receives whose handles go at any moment: whatever meets, or does not any more, all ends.
TEST_P(GpuPairsByTag, AreDroppedOnBothSides) {
  run_ranks(
      2,
      [&](Session& session) {
        const Group group = ordered_group(session);
        std::mt19937 random(static_cast<unsigned>(session.rank()) + 5);
        OnGpu tensor(session, all(10, static_cast<float>(session.rank())));
        std::vector<float> host(100'000);
        for (int round = 0; round < (sanitized ? 60 : 300); ++round) {
          const bool on_host = round % 3 == 0;
          const Tensor what = on_host ? view(host) : tensor.tensor();
          const PairOptions options{.group = group, .tag = 1, .ready = on_host ? nullptr : tensor.stream()};
          session.barrier();
          std::this_thread::sleep_for(std::chrono::microseconds(random() % 60));
          Handle handle = session.rank() == 0 ? session.send_async(what, 1, options)
                          : round % 2 == 0    ? session.recv_async(what, 0, options)
                                              : session.recv_any_async(what, {}, nullptr, options);
          const auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(random() % 60);
          while (std::chrono::steady_clock::now() < until) (void)handle.poll();
        }
        session.barrier();  // the last receive may be of any tag
        const PairOptions options{.group = group, .tag = 2, .ready = tensor.stream()};
        if (session.rank() == 0) session.send(tensor.tensor(), 1, options);
        if (session.rank() == 1) session.recv(tensor.tensor(), 0, options);
        EXPECT_EQ(tensor.read(), all(10, 0));
      },
      config);
}

/// What only streams wait for holds up no removal of the group.
TEST_P(GpuPairsByTag, OutliveTheirGroup) {
  run_ranks(
      2,
      [&](Session& session) {
        for (int round = 0; round < 20; ++round) {
          const Group group = ordered_group(session);
          OnGpu tensor(session, all(10, static_cast<float>(session.rank())));
          const PairOptions options{.group = group, .tag = 1, .ready = tensor.stream()};
          Handle handle = session.rank() == 0 ? session.send_async(tensor.tensor(), 1, options)
                                              : session.recv_async(tensor.tensor(), 0, options);
          handle.wait(tensor.stream());
          session.remove_group(group);
          EXPECT_EQ(tensor.read(), all(10, 0));
        }
      },
      config);
}

/// What has no partner is withdrawn, and leaves no trace.
TEST_P(GpuPairsByTag, MayTimeOut) {
  run_ranks(
      2,
      [&](Session& session) {
        const Group group = ordered_group(session);
        OnGpu tensor(session, all(10, static_cast<float>(session.rank())));
        const PairOptions options{.group = group, .tag = 1, .ready = tensor.stream()};
        PairOptions hasty = options;
        hasty.timeout_seconds = 0.1;
        if (session.rank() == 0) {
          EXPECT_NE(error_text([&] { session.send(tensor.tensor(), 1, hasty); }, ErrorCode::stalled), "");
          { const Handle dropped = session.send_async(tensor.tensor(), 1, options); }
          hasty.tag = 2;
          EXPECT_NE(error_text([&] { session.recv(tensor.tensor(), 1, hasty); }, ErrorCode::stalled), "");
        }
        session.barrier();
        if (session.rank() == 0) session.send(tensor.tensor(), 1, options);
        if (session.rank() == 1) session.recv(tensor.tensor(), 0, options);
        EXPECT_EQ(tensor.read(), all(10, 0));
      },
      config);
}

/// …with an error, though the rank had a partner.
TEST_P(GpuPairsByTag, EndWithALostRank) {
  const testing::PinnedMayStay stays;
  for (int round = 0; round < 6; ++round) {
    auto worlds = testing::test_worlds(2, config);
    std::vector<std::thread> threads;
    for (World& world : worlds) {
      threads.emplace_back([&] {
        Session session(std::move(world), config);
        const Group group = ordered_group(session);
        OnGpu in(session, all(10, 1)), out(session, all(10, 1));
        const int other = 1 - session.rank();
        const auto exchange = [&](int tag) {
          Handle receive = session.recv_async(in.tensor(), other, {.group = group, .tag = tag, .ready = in.stream()});
          session.send(out.tensor(), other, {.group = group, .tag = tag, .ready = out.stream()});
          receive.wait();
        };
        if (session.rank() == 0) {
          for (int i = 0; i < round; ++i) exchange(i);
          return session.abandon();
        }
        try {
          for (int i = 0;; ++i) exchange(i);
        } catch (const Error& error) {  // which of them is a matter of how far it came
          EXPECT_TRUE(error.code() == ErrorCode::aborted || error.code() == ErrorCode::closed) << error.what();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
}

/// …also if it was another rank of the group, or of the world.
TEST_P(GpuPairsByTag, EndWithAnyLostRank) {
  const testing::PinnedMayStay stays;
  for (int round = 0; round < 6; ++round) {
    auto worlds = testing::test_worlds(3, config);
    std::vector<std::thread> threads;
    for (World& world : worlds) {
      threads.emplace_back([&] {
        Session session(std::move(world), config);
        const std::vector<int> two{1, 2};
        const Group group = round % 2 == 0 ? ordered_group(session) : session.new_group(two, {.order = Order::program});
        session.barrier();
        if (session.rank() == 0) {
          std::this_thread::sleep_for(std::chrono::milliseconds(round));
          return session.abandon();
        }
        OnGpu in(session, all(10, 1)), out(session, all(10, 1));
        const int other = round % 2 == 0 ? 3 - session.rank() : 2 - session.rank();
        try {
          for (int tag = 0;; ++tag) {
            Handle receive = session.recv_async(in.tensor(), other, {.group = group, .tag = tag, .ready = in.stream()});
            session.send(out.tensor(), other, {.group = group, .tag = tag, .ready = out.stream()});
            receive.wait();
          }
        } catch (const Error& error) {
          EXPECT_TRUE(error.code() == ErrorCode::aborted || error.code() == ErrorCode::closed) << error.what();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
}

struct GpuPairsByTagFailures : GpuPairsByTag {};
INSTANTIATE_TEST_SUITE_P(Over, GpuPairsByTagFailures, ::testing::Values("nccl"),
                         [](const auto& info) { return info.param; });

/// Of NCCL, at random moments, where any rank's message may be the first.
TEST_P(GpuPairsByTagFailures, AreAgreed) {
  for (unsigned seed = 1; seed <= (sanitized ? 3 : 8); ++seed) {
    std::atomic<int> errors{0};
    run_ranks(
        3,
        [&](Session& session) {
          const int rank = session.rank(), next = (rank + 1) % 3, before = (rank + 2) % 3;
          const Group group = ordered_group(session);
          std::mt19937 random(seed * 10 + static_cast<unsigned>(rank));
          constexpr int steps = 14, quiet = 2;  // the last ones have no failures
          // The side of a message that is done may hear of the other side's failure during its next message.
          constexpr int hears = 1;
          for (int step = 0; step < steps; ++step) {
            const bool fails = step < steps - quiet - hears, may_fail = step < steps - quiet;
            session.barrier();
            if (fails && random() % 4 == 0)
              testing::fail_nccl(rank, NcclResult::remote_error, static_cast<int>(random() % 3));
            if (!fails) testing::fail_nccl(rank, NcclResult::success, 1 << 30);
            session.barrier();
            OnGpu out(session, all(64, static_cast<float>(rank))), in(session, all(64, -1)), sum(session, all(64, 1));
            std::array<Handle, 3> handles{
                session.send_async(out.tensor(), next, {.group = group, .tag = step % 2, .ready = out.stream()}),
                step % 3 == 0
                    ? session.recv_any_async(in.tensor(), {}, nullptr, {.group = group, .ready = in.stream()})
                    : session.recv_async(in.tensor(), before, {.group = group, .tag = step % 2, .ready = in.stream()}),
                session.all_reduce_async("sum", sum.tensor(), {.ready = sum.stream()})};
            errors += testing::wait_for_pairs_and_sum(handles, in, before, sum, may_fail, seed);
          }
        },
        config);
    EXPECT_GT(errors, 0) << "seed " << seed;
  }
}

}  // namespace
}  // namespace kolo
