// Data-parallel training of tensors on GPUs, over fake GPUs and a fake NCCL: ranks are threads.

#include <kolo/data_parallel.h>

#include <cmath>

#include "tests/ops/gpu/gpu_ranks.h"
#include "tests/support/fake_gpu.h"
#include "tests/support/thread_ranks.h"

namespace kolo {
namespace {

using testing::all;
using testing::OnGpu;
using testing::run_ranks;

struct GpuDataParallel : testing::GpuRanks {};
INSTANTIATE_TEST_SUITE_P(Over, GpuDataParallel, ::testing::Values("nccl", "staged"),
                         [](const auto& info) { return info.param; });

/// Values and gradients of three parameters, each tensor written on a stream of its own.
struct Trained {
  explicit Trained(Session& session) {
    for (const std::size_t size : {100U, 33U, 500U}) {
      values.push_back(std::make_unique<OnGpu>(session, all(size, static_cast<float>(session.rank() + 1))));
      gradients.push_back(std::make_unique<OnGpu>(session, all(size, static_cast<float>(session.rank() + 1))));
      tensors.push_back({std::to_string(size), values.back()->tensor(), gradients.back()->tensor()});
    }
  }
  std::vector<std::unique_ptr<OnGpu>> values, gradients;
  std::vector<TrainedTensor> tensors;
};

/// Streams wait, or the host: with each, what is read on the gradient's stream is the sum.
TEST_P(GpuDataParallel, GradientsArriveOnStreamsAndOnTheHost) {
  for (const std::optional<DType> wire :
       {std::optional<DType>(), std::optional(DType::bf16), std::optional(DType::f16)}) {
    run_ranks(
        3,
        [&](Session& session) {
          Trained mine(session);
          DataParallel parallel(session, mine.tensors, {.wire = wire, .counts = true});
          for (int step = 0; step < 4; ++step) {
            parallel.count(2, 4);  // divided by 4 on the wire, where there is one; 6 are counted
            for (std::size_t i = 3; i-- > 0;) {
              mine.gradients[i]->write();
              parallel.ready(i, mine.gradients[i]->stream());
            }
            for (const std::size_t i : parallel.submitted()) {
              if (step % 2 == 0) {
                parallel.wait(i, mine.gradients[i]->stream());
              } else {
                parallel.wait(i);
              }
            }
            parallel.finish();
            EXPECT_EQ(parallel.counted(), 6);
            EXPECT_EQ(parallel.gradient_scale(), wire ? 4.0 / 6 : 1.0 / 6);
            for (std::size_t i = 0; i < 3; ++i) {
              const std::vector<float> found = mine.gradients[i]->read();
              EXPECT_EQ(found, all(found.size(), wire ? 1.5f : 6.0f)) << "tensor " << i << ", step " << step;
            }
          }
        },
        config);
  }
}

TEST_P(GpuDataParallel, ValuesComeFromTheRoot) {
  run_ranks(
      3,
      [&](Session& session) {
        Trained mine(session);
        for (const auto& value : mine.values) {
          const testing::FakeGpu& gpu = testing::fake_gpu(session.device().index);
          (void)gpu;
          (void)value->read();  // written, before another stream's broadcast reads it
        }
        DataParallel parallel(session, mine.tensors);
        parallel.broadcast(2, mine.values[0]->stream());
        for (const auto& value : mine.values) {
          const std::vector<float> found = value->read();
          EXPECT_EQ(found, all(found.size(), 3));
        }
      },
      config);
}

/// Each rank's shard is reduced there, and what a rank writes to its shard of the value is gathered behind its stream.
TEST_P(GpuDataParallel, ShardsAreGatheredBehindTheirStream) {
  run_ranks(
      3,
      [&](Session& session) {
        Trained mine(session);
        DataParallel parallel(session, mine.tensors, {.shards_from = 50});
        for (int step = 0; step < 3; ++step) {
          for (std::size_t i = 0; i < 3; ++i) {
            mine.values[i]->write();
            mine.gradients[i]->write();
            parallel.ready(i, mine.gradients[i]->stream());
          }
          parallel.finish(mine.gradients[0]->stream());
          for (std::size_t i = 0; i < 3; ++i) parallel.updated(i, mine.values[i]->stream());
          for (std::size_t i = 0; i < 3; ++i) {
            if (step % 2 == 0) {
              parallel.use(i, mine.values[i]->stream());
            } else {
              parallel.use(i);
            }
          }
          const std::vector<float> gathered = mine.values[2]->read(), own = mine.values[1]->read();
          for (std::size_t k = 0; k < gathered.size(); ++k) {
            int owner = 0;
            while (static_cast<std::int64_t>(k) >= rows_of_rank(500, 3, owner).end) ++owner;
            ASSERT_EQ(gathered[k], static_cast<float>(owner + 1)) << k;
          }
          EXPECT_EQ(own, all(33, static_cast<float>(session.rank() + 1))) << "too small to be split";
        }
      },
      config);
}

}  // namespace
}  // namespace kolo
