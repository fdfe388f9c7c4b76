#pragma once

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include <kolo/backend.h>

#include "tests/support/fake_gpu.h"

namespace kolo::testing {

/// Steps an operation until it is complete, at most for `timeout`; whether it is.
inline bool completes_within(Operation& operation, std::chrono::milliseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  while (!operation.step()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::yield();
  }
  return true;
}

/// One rank's part of a bucket of two f32 tensors with `count` ones each, which streams of their own write, the second
/// one late: expects that the backend waits for both, and finds `expected` in them afterwards.
inline void expect_late_stream_is_waited_for(Backend& backend, Device device, Signature signature, std::int64_t count,
                                             float expected) {
  FakeGpu& gpu = fake_gpu(device.index);
  const std::vector<float> ones(static_cast<std::size_t>(count), 1.0f);
  const std::size_t bytes = ones.size() * sizeof(float);
  const GpuStream early(gpu), late(gpu);
  const std::array streams{early.get(), late.get()};
  const GpuBuffer memory(gpu, 2 * bytes + 64);  // apart
  const auto written = std::make_shared<std::atomic<bool>>(false);
  signature.dtype = DType::f32;
  signature.device = DeviceKind::cuda;
  signature.shape = Shape{count};
  Bucket bucket{signature, {}};
  gpu.clear(memory.data(), memory.size(), early.get());
  gpu.mark(early.get())->order(late.get());
  gpu.put(late.get(), [written] { return written->load(); });
  for (std::size_t t = 0; t < streams.size(); ++t) {
    const Tensor tensor{memory.data() + t * (bytes + 64), Shape{count}, DType::f32, device};
    gpu.upload(tensor.data, ones.data(), bytes, streams[t]);
    bucket.tensors.push_back({tensor, tensor});
    bucket.ready.push_back(gpu.mark(streams[t]));
  }
  const auto operation = backend.start(bucket);
  EXPECT_FALSE(completes_within(*operation, std::chrono::milliseconds(50))) << "before its inputs are there";
  *written = true;
  EXPECT_TRUE(completes_within(*operation, std::chrono::seconds(20)));
  for (std::size_t t = 0; t < streams.size(); ++t) {
    std::vector<float> found(ones.size());
    gpu.download(found.data(), bucket.tensors[t].out.data, bytes, streams[t]);
    EXPECT_EQ(found, std::vector<float>(ones.size(), expected)) << "tensor " << t;
  }
}

}  // namespace kolo::testing
