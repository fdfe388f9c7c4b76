// PyTorch's process groups with tensors on GPUs, over fake ones: ranks are threads.

#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <c10/core/StreamGuard.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <cstdlib>
#include <functional>
#include <future>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "apps/torch/c10d_backend.h"
#include "tests/apps/torch/torch_gpu.h"
#include "tests/support/fake_gpu.h"
#include "tests/support/fake_nccl.h"

namespace kolo_torch {
namespace {

using kolo::testing::default_stream;
using kolo::testing::found;
using kolo::testing::Held;
using kolo::testing::new_stream;
using kolo::testing::written_late;
using Values = std::vector<float>;
using Group = c10::intrusive_ptr<C10dBackend>;

constexpr int ranks = 3;

Values all(std::size_t count, float value) {
  return Values(count, value);
}

/// So many times the value, written late.
at::Tensor late(int gpu, std::int64_t size, float value) {
  return written_late(gpu, all(static_cast<std::size_t>(size), value), {size});
}

struct TorchOnGpus : ::testing::TestWithParam<std::string> {
  TorchOnGpus() {
    kolo::testing::set_fake_nccl({.in_progress = 80, .seed = 3});
    const bool over_nodes = GetParam() == "nodes";
    setenv("KOLO_GPU_BACKEND", over_nodes ? "nccl" : GetParam().c_str(), 1);
    over_nodes ? setenv("KOLO_FAKE_NODES", "1,2", 1) : unsetenv("KOLO_FAKE_NODES");
  }
  ~TorchOnGpus() override { kolo::testing::set_fake_gpus(8); }

  /// Each rank in a thread, whose current stream is not the default one.
  static void run(const std::function<void(C10dBackend& group, int gpu)>& program, int milliseconds = 20000,
                  bool stays = true) {
    const auto store = c10::make_intrusive<c10d::HashStore>();
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; ++rank) {
      threads.emplace_back([&, rank] {
        const c10::StreamGuard guard(new_stream(rank));
        try {
          const C10dBackend::About about{.name = "kolo",
                                         .store = store,
                                         .rank = rank,
                                         .size = ranks,
                                         .timeout = std::chrono::milliseconds(milliseconds)};
          const Group group = c10::make_intrusive<C10dBackend>(about, nullptr);
          program(*group, rank);
          if (stays) group->barrier({})->wait();
        } catch (const std::exception& error) {
          ADD_FAILURE() << "rank " << rank << ": " << error.what();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
};
struct TorchOnNccl : TorchOnGpus {};  // the host takes part in what is staged
const auto name_of = [](const auto& info) { return info.param; };
INSTANTIATE_TEST_SUITE_P(Over, TorchOnNccl, ::testing::Values("nccl", "nodes"), name_of);
INSTANTIATE_TEST_SUITE_P(Over, TorchOnGpus, ::testing::Values("nccl", "staged", "nodes"), name_of);

TEST_P(TorchOnGpus, EveryOperationRunsBehindTheCurrentStream) {
  run([](C10dBackend& group, int gpu) {
    const auto mine = static_cast<float>(gpu + 1);
    for (int turn = 0; turn < 5; ++turn) {
      std::vector<at::Tensor> one{late(gpu, 100, mine)};
      group.allreduce(one, {})->wait();
      EXPECT_EQ(found(one[0]), all(100, 6));

      one = {late(gpu, 100, mine)};
      c10d::AllreduceOptions average;
      average.reduceOp = c10d::ReduceOp::AVG;
      group.allreduce(one, average)->wait();
      EXPECT_EQ(found(one[0]), all(100, 2));

      one = {late(gpu, 7, mine), late(gpu, 9, mine)};
      group.allreduce_coalesced(one, {})->wait();
      EXPECT_EQ(found(one[0]), all(7, 6));
      EXPECT_EQ(found(one[1]), all(9, 6));

      one = {late(gpu, 10, mine)};
      c10d::BroadcastOptions from_two;
      from_two.rootRank = 2;
      group.broadcast(one, from_two)->wait();
      EXPECT_EQ(found(one[0]), all(10, 3));

      one = {late(gpu, 10, mine)};
      c10d::ReduceOptions to_one;
      to_one.rootRank = 1;
      group.reduce(one, to_one)->wait();
      EXPECT_EQ(found(one[0]), gpu == 1 ? all(10, 6) : all(10, mine));

      std::vector<std::vector<at::Tensor>> lists(1);
      one = {late(gpu, 5, mine)};
      for (int rank = 0; rank < ranks; ++rank) lists[0].push_back(late(gpu, 5, 0));
      group.allgather(lists, one, {})->wait();
      for (int rank = 0; rank < ranks; ++rank)
        EXPECT_EQ(found(lists[0][static_cast<std::size_t>(rank)]), all(5, static_cast<float>(rank + 1)));

      at::Tensor joined = late(gpu, 15, 0);
      group._allgather_base(joined, one[0], {})->wait();
      Values expected = all(5, 1);
      for (const float value : {2.0F, 3.0F}) expected.insert(expected.end(), 5, value);
      EXPECT_EQ(found(joined), expected);

      group._reduce_scatter_base(one[0], joined, {})->wait();
      EXPECT_EQ(found(one[0]), all(5, 3 * mine));

      std::vector<std::vector<at::Tensor>> blocks(1);
      for (int rank = 0; rank < ranks; ++rank) blocks[0].push_back(late(gpu, 5, mine));
      group.reduce_scatter(one, blocks, {})->wait();
      EXPECT_EQ(found(one[0]), all(5, 6));

      std::vector<at::Tensor> from, to;
      for (int rank = 0; rank < ranks; ++rank) {
        from.push_back(late(gpu, 4, 10 * mine + static_cast<float>(rank)));
        to.push_back(late(gpu, 4, 0));
      }
      group.alltoall(to, from, {})->wait();
      for (int rank = 0; rank < ranks; ++rank)
        EXPECT_EQ(found(to[static_cast<std::size_t>(rank)]), all(4, static_cast<float>(10 * (rank + 1) + gpu)));

      one = {late(gpu, 6, mine)};
      std::vector<std::vector<at::Tensor>> gathered;
      if (gpu == 0) {
        gathered.resize(1);
        for (int rank = 0; rank < ranks; ++rank) gathered[0].push_back(late(gpu, 6, 0));
      }
      group.gather(gathered, one, {})->wait();
      group.scatter(one, gathered, {})->wait();
      EXPECT_EQ(found(one[0]), all(6, mine));

      one = {late(gpu, 8, mine)};
      std::vector<at::Tensor> taken{late(gpu, 8, 0)};
      const auto sent = group.send(one, (gpu + 1) % ranks, 5);
      group.recv(taken, (gpu + ranks - 1) % ranks, 5)->wait();
      sent->wait();
      EXPECT_EQ(found(taken[0]), all(8, static_cast<float>((gpu + ranks - 1) % ranks + 1)));
    }
  });
}

/// Its copies are made on the streams of those who call and wait.
TEST_P(TorchOnGpus, StridedTensors) {
  run([](C10dBackend& group, int gpu) {
    for (int turn = 0; turn < 10; ++turn) {
      Values values(12);
      std::iota(values.begin(), values.end(), static_cast<float>(gpu));
      const at::Tensor whole = written_late(gpu, values, {4, 3});
      std::vector<at::Tensor> columns{whole.narrow(1, 0, 2)};
      group.allreduce(columns, {})->wait();
      Values expected = values;
      for (std::size_t i = 0; i < expected.size(); ++i) {
        if (i % 3 < 2) expected[i] = static_cast<float>(3 * i + 3);
      }
      EXPECT_EQ(found(whole), expected);
    }
  });
}

/// The caller's stream stands still all the time, and its thread does not.
TEST_P(TorchOnNccl, TheHostRunsAhead) {
  run([](C10dBackend& group, int gpu) {
    std::vector<at::Tensor> one{late(gpu, 50, 1)};
    {
      const c10::Stream stream = current_stream(one[0].device());
      const Held held(stream);
      for (int step = 0; step < 5; ++step) {
        const auto work = group.allreduce(one, {});
        work->wait();
        EXPECT_FALSE(work->isCompleted());
      }
    }
    EXPECT_EQ(found(one[0]), all(50, 243));
  });
}

/// The default stream stands still all the time.
TEST_P(TorchOnGpus, FuturesFindTheResults) {
  run([](C10dBackend& group, int gpu) {
    auto held = std::make_unique<Held>(default_stream(gpu));
    for (int turn = 0; turn < 10; ++turn) {
      std::vector<at::Tensor> one{late(gpu, 50, 1)};
      const auto work = group.allreduce(one, {});
      const auto future = work->getFuture();
      std::promise<Values> told;
      future->addCallback([&](c10::ivalue::Future& done) { told.set_value(found(done.value().toTensorVector()[0])); });
      auto values = told.get_future();
      const bool in_time = values.wait_for(std::chrono::seconds(10)) == std::future_status::ready;
      EXPECT_TRUE(in_time);
      if (!in_time) held.reset();
      EXPECT_EQ(values.get(), all(50, 3));
      future->wait();
      EXPECT_EQ(found(one[0]), all(50, 3));
      while (!work->isCompleted()) std::this_thread::yield();
      EXPECT_TRUE(work->isSuccess());
    }
  });
}

/// Whose work goes on after the first one's, which has a long way to go.
TEST_P(TorchOnNccl, OtherStreamsFindTheResults) {
  run([](C10dBackend& group, int gpu) {
    for (int turn = 0; turn < 10; ++turn) {
      std::vector<at::Tensor> one{late(gpu, 50, 1)};
      auto held = std::make_unique<Held>(current_stream(one[0].device()));
      const auto work = group.allreduce(one, {});
      work->wait();
      std::thread other([&] {
        const c10::StreamGuard guard(new_stream(gpu));
        work->wait();
        EXPECT_EQ(found(one[0]), all(50, 3));
      });
      std::this_thread::sleep_for(std::chrono::milliseconds(3));
      held.reset();
      other.join();
      EXPECT_EQ(found(one[0]), all(50, 3));
    }
  });
}

/// One for all of a batch, which has no value of its own.
TEST_P(TorchOnNccl, ABatchIsWaitedForByStreamsAndFutures) {
  run([](C10dBackend& group, int gpu) {
    for (int turn = 0; turn < 10; ++turn) {
      std::vector<at::Tensor> sent{late(gpu, 8, static_cast<float>(gpu + turn))};
      std::vector<at::Tensor> taken{late(gpu, 8, 0)};
      const Values expected = all(8, static_cast<float>((gpu + ranks - 1) % ranks + turn));
      auto held = std::make_unique<Held>(current_stream(sent[0].device()));
      group.startCoalescing();
      group.send(sent, (gpu + 1) % ranks, 0);
      group.recv(taken, (gpu + ranks - 1) % ranks, 0);
      const auto work = group.endCoalescing();
      work->wait();
      EXPECT_FALSE(work->isCompleted());
      const auto future = work->getFuture();
      std::thread other([&] {
        const c10::StreamGuard guard(new_stream(gpu));
        work->wait();
        EXPECT_EQ(found(taken[0]), expected);
      });
      std::thread last([&] {
        const c10::StreamGuard guard(new_stream(gpu));
        future->wait();
        EXPECT_EQ(found(taken[0]), expected);
      });
      std::this_thread::sleep_for(std::chrono::milliseconds(3));
      held.reset();
      other.join();
      last.join();
      EXPECT_TRUE(work->wait(std::chrono::seconds(10)));
      EXPECT_TRUE(work->isCompleted());
    }
  });
}

/// What arrives fits the memory, and not the blocks: the memory is read and written until the GPU is done with it.
TEST_P(TorchOnNccl, WhatFailsAtTheEndKeepsItsMemory) {
  run([](C10dBackend& group, int gpu) {
    for (int turn = 0; turn < 10; ++turn) {
      std::vector<at::Tensor> one{late(gpu, 4, static_cast<float>(gpu + turn))};
      std::vector<std::vector<at::Tensor>> lists(1);
      const bool fits = gpu != 1;
      for (int rank = 0; rank < ranks; ++rank) {
        const std::int64_t size = fits ? 4 : 3 + rank;
        lists[0].push_back(late(gpu, size, 0));
      }
      auto work = group.allgather(lists, one, {});
      auto held = std::make_unique<Held>(current_stream(one[0].device()));
      one.clear();
      if (fits) {
        work->wait();
      } else {
        EXPECT_THROW(work->wait(), std::runtime_error);
      }
      work.reset();
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      held.reset();
      if (!fits) continue;
      for (int rank = 0; rank < ranks; ++rank)
        EXPECT_EQ(found(lists[0][static_cast<std::size_t>(rank)]), all(4, static_cast<float>(rank + turn)));
    }
  });
}

TEST_P(TorchOnGpus, TensorsOfTwoDevicesAreRefused) {
  run([](C10dBackend& group, int gpu) {
    std::vector<at::Tensor> one{late(gpu, 5, 1)};
    std::vector<std::vector<at::Tensor>> lists{{one[0], at::ones({5}), one[0]}};
    EXPECT_THROW(group.allgather(lists, one, {}), c10::Error);
  });
}

/// It begins when the streams of all ranks have come to it.
TEST_P(TorchOnGpus, ABarrierWaitsForStreams) {
  run([](C10dBackend& group, int gpu) {
    std::vector<at::Tensor> one{late(gpu, 5, 1)};
    group.allreduce(one, {})->wait();
    group.barrier({})->wait();
    static std::atomic<int> come{0};
    const c10::Device device(c10::kCUDA, static_cast<c10::DeviceIndex>(gpu));
    auto held = std::make_unique<Held>(current_stream(device));
    std::thread lets_go([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(5 * (gpu + 1)));
      ++come;
      held.reset();
    });
    group.barrier({})->wait();
    EXPECT_EQ(come % ranks, 0) << come;
    lets_go.join();
  });
}

/// Nobody waits for it, and its tensors are dropped: what is sent is read before the memory is used again.
TEST_P(TorchOnGpus, WorkThatIsDroppedGoesOn) {
  run([](C10dBackend& group, int gpu) {
    for (int turn = 0; turn < 20; ++turn) {
      std::vector<at::Tensor> taken{late(gpu, 64, 0)};
      {
        std::vector<at::Tensor> sent{late(gpu, 64, static_cast<float>(gpu + turn))};
        group.send(sent, (gpu + 1) % ranks, 0);
      }
      group.recv(taken, (gpu + ranks - 1) % ranks, 0)->wait();
      EXPECT_EQ(found(taken[0]), all(64, static_cast<float>((gpu + ranks - 1) % ranks + turn)));
    }
  });
}

/// A block that a copy was made for lives until the stream that waited has it, whichever that is.
TEST_P(TorchOnGpus, CopiesLiveAsLongAsTheyAreUsed) {
  run([](C10dBackend& group, int gpu) {
    for (int turn = 0; turn < 20; ++turn) {
      std::vector<std::vector<at::Tensor>> lists(1);
      std::vector<at::Tensor> one{late(gpu, 5, static_cast<float>(gpu + turn))};
      for (int rank = 0; rank < ranks; ++rank) lists[0].push_back(late(gpu, 5, 0));
      auto work = group.allgather(lists, one, {});
      const c10::StreamGuard elsewhere(new_stream(gpu));
      auto held = std::make_unique<Held>(current_stream(one[0].device()));
      work->wait();
      work.reset();
      std::this_thread::sleep_for(std::chrono::milliseconds(3));
      held.reset();
      for (int rank = 0; rank < ranks; ++rank)
        EXPECT_EQ(found(lists[0][static_cast<std::size_t>(rank)]), all(5, static_cast<float>(rank + turn)));
    }
  });
}

TEST_P(TorchOnGpus, ACallThatOneRankDoesNotMakeFailsInTime) {
  run(
      [](C10dBackend& group, int gpu) {
        std::vector<at::Tensor> one{late(gpu, 5, 1)};
        if (gpu == 1) {
          std::this_thread::sleep_for(std::chrono::milliseconds(1500));
          return;
        }
        const auto work = group.allreduce(one, {});
        try {
          work->wait();
          ADD_FAILURE() << "rank " << gpu << " has not been told";
        } catch (const std::runtime_error& error) {
          EXPECT_NE(std::string(error.what()).find("rank 1"), std::string::npos) << error.what();
        }
      },
      700, false);
}

TEST_P(TorchOnGpus, WithoutAGpuTheErrorSaysSo) {
  kolo::testing::set_fake_gpus(0);
  setenv("KOLO_GPU_BACKEND", "auto", 1);
  run([](C10dBackend& group, int gpu) {
    std::vector<at::Tensor> one{late(gpu, 5, 1)};
    try {
      group.allreduce(one, {});
      ADD_FAILURE() << "no error";
    } catch (const std::exception& error) {
      EXPECT_NE(std::string(error.what()).find("this kolo uses no GPU"), std::string::npos) << error.what();
    }
  });
}

}  // namespace
}  // namespace kolo_torch
