// Sends and receives of tensors on GPUs, over fake GPUs and a fake NCCL: ranks are threads.

#include <fmt/format.h>
#include <kolo/session.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <random>

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

struct GpuPairs : testing::GpuRanks {
  bool nccl() const { return GetParam() == "nccl"; }
};
INSTANTIATE_TEST_SUITE_P(Over, GpuPairs, ::testing::Values("nccl", "staged"),
                         [](const auto& info) { return info.param; });

std::ptrdiff_t pair_calls_of(int rank, std::string_view start) {
  const auto log = testing::nccl_log(rank);
  return std::ranges::count_if(log, [&](const std::string& line) { return line.starts_with(start); });
}

/// In a ring and against it at once, beside what all ranks do, each rank in an order of its own.
TEST_P(GpuPairs, InAnyOrderBesideCollectives) {
  for (unsigned seed = 1; seed <= 4; ++seed) {
    run_ranks(
        3,
        [&](Session& session) {
          const int rank = session.rank(), next = (rank + 1) % 3, before = (rank + 2) % 3;
          std::mt19937 random(seed * 10 + static_cast<unsigned>(rank));
          for (int step = 0; step < 8; ++step) {
            std::vector<int> order{0, 1, 2, 3, 4};
            std::shuffle(order.begin(), order.end(), random);
            std::vector<std::unique_ptr<OnGpu>> tensors;
            std::vector<std::pair<Handle, float>> handles;
            for (const int what : order) {
              const bool sends = what == 1 || what == 3;
              tensors.push_back(std::make_unique<OnGpu>(session, all(700, static_cast<float>(sends ? rank : 1))));
              const Tensor tensor = tensors.back()->tensor();
              void* const ready = tensors.back()->stream();
              if (what == 0) handles.emplace_back(session.all_reduce_async("all", tensor, {.ready = ready}), 3);
              if (what == 1) handles.emplace_back(session.send_async("up", tensor, next, {.ready = ready}), rank);
              if (what == 2) handles.emplace_back(session.recv_async("up", tensor, before, {.ready = ready}), before);
              if (what == 3) handles.emplace_back(session.send_async("down", tensor, before, {.ready = ready}), rank);
              if (what == 4) handles.emplace_back(session.recv_async("down", tensor, next, {.ready = ready}), next);
            }
            for (std::size_t i = 0; i < handles.size(); ++i) {
              handles[i].first.wait(tensors[i]->stream());
              EXPECT_EQ(tensors[i]->read(), all(700, handles[i].second)) << "seed " << seed;
            }
          }
        },
        config);
  }
  const std::ptrdiff_t upwards = nccl() ? 4 * 8 * 3 : 0;  // from the lower rank of a pair, its communicator's rank 0
  EXPECT_EQ(pair_calls_of(0, "send 2800"), upwards);
  EXPECT_EQ(pair_calls_of(1, "send 2800"), upwards);
}

/// Of every type, also those that NCCL does not know, and of none.
TEST_P(GpuPairs, OfAnyTypeAndSize) {
  run_ranks(
      2,
      [&](Session& session) {
        OnGpu memory(session, all(1000, static_cast<float>(1 - session.rank())));
        for (const DType dtype : {DType::i16, DType::boolean, DType::bf16, DType::u64, DType::f32}) {
          for (const std::int64_t count : {0, 1, 333}) {
            memory.write();
            Tensor tensor = memory.tensor();
            tensor.dtype = dtype;
            tensor.shape = Shape{count};
            if (session.rank() == 0) session.send("x", tensor, 1, {.ready = memory.stream()});
            if (session.rank() == 1) session.recv("x", tensor, 0, {.ready = memory.stream()});
            const auto words = static_cast<std::size_t>(count) * size_of(dtype) / sizeof(float);
            const auto found = memory.read();
            EXPECT_EQ(std::vector(found.begin(), found.begin() + static_cast<std::ptrdiff_t>(words)), all(words, 1));
          }
        }
        std::vector<float> host(3, static_cast<float>(session.rank()));
        if (session.rank() == 0) session.send("host", view(host), 1);
        if (session.rank() == 1) session.recv("host", view(host), 0);
        EXPECT_EQ(host, all(3, 0));
        OnGpu tensor(session, all(3, 1));
        const auto mixed = [&] {
          if (session.rank() == 0) session.send("mixed", view(host), 1);
          if (session.rank() == 1) session.recv("mixed", tensor.tensor(), 0, {.ready = tensor.stream()});
        };
        EXPECT_NE(error_text(mixed, ErrorCode::mismatch), "");
      },
      config);
}

/// One rank's program has not used the pair, and is late: its runtime opens it nevertheless.
TEST_P(GpuPairs, MayTimeOut) {
  run_ranks(
      2,
      [&](Session& session) {
        OnGpu tensor(session, all(10, 5));
        float host = 0;
        if (session.rank() == 0) {
          const auto send = [&] {
            session.send("x", tensor.tensor(), 1, {.ready = tensor.stream(), .timeout_seconds = 0.3});
          };
          EXPECT_NE(error_text(send, ErrorCode::stalled).find("rank 1"), std::string::npos);
        }
        session.all_reduce("then", view_scalar(host));
        if (session.rank() == 1) {
          const auto receive = [&] { session.recv("x", tensor.tensor(), 0, {.ready = tensor.stream()}); };
          EXPECT_NE(error_text(receive, ErrorCode::stalled), "") << "the same for who is late";
        }
        if (session.rank() == 0) session.send("x", tensor.tensor(), 1, {.ready = tensor.stream()});
        if (session.rank() == 1) session.recv("x", tensor.tensor(), 0, {.ready = tensor.stream()});
        EXPECT_EQ(tensor.read(), all(10, 5));
      },
      config);
}

struct GpuPairFailures : GpuPairs {};
INSTANTIATE_TEST_SUITE_P(Over, GpuPairFailures, ::testing::Values("nccl"), [](const auto& info) { return info.param; });

/// …of NCCL, at random moments: each rank gets a result or an error, nobody hangs, and the pairs go on.
TEST_P(GpuPairFailures, AreAgreedAndThePairsGoOn) {
  for (unsigned seed = 1; seed <= (sanitized ? 3 : 8); ++seed) {
    std::atomic<int> errors{0};
    run_ranks(
        3,
        [&](Session& session) {
          const int rank = session.rank(), next = (rank + 1) % 3, before = (rank + 2) % 3;
          std::mt19937 random(seed * 10 + static_cast<unsigned>(rank));
          constexpr int steps = 14, quiet = 2;  // the last ones have no failures
          for (int step = 0; step < steps; ++step) {
            const bool fails = step < steps - quiet;
            session.barrier();
            if (fails && random() % 4 == 0)
              testing::fail_nccl(rank, NcclResult::remote_error, static_cast<int>(random() % 3));
            if (!fails) testing::fail_nccl(rank, NcclResult::success, 1 << 30);
            session.barrier();
            OnGpu out(session, all(64, static_cast<float>(rank))), in(session, all(64, -1)), sum(session, all(64, 1));
            std::array<Handle, 3> handles{session.send_async("x", out.tensor(), next, {.ready = out.stream()}),
                                          session.recv_async("x", in.tensor(), before, {.ready = in.stream()}),
                                          session.all_reduce_async("sum", sum.tensor(), {.ready = sum.stream()})};
            errors += testing::wait_for_pairs_and_sum(handles, in, before, sum, fails, seed);
          }
        },
        config);
    EXPECT_GT(errors, 0) << "seed " << seed;
  }
}

}  // namespace
}  // namespace kolo
