#pragma once

#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include <kolo/session.h>

#include "ops/gpu/gpu.h"

namespace kolo::testing {

/// A tensor of the rank's GPU, and the stream of a program that works with it.
class OnGpu {
 public:
  OnGpu(Session& session, std::vector<float> values)
      : gpu_(cuda_gpu(session.device().index)), values_(std::move(values)), stream_(gpu_) {
    memory_ = GpuBuffer(gpu_, values_.size() * sizeof(float));
    pinned_ = GpuBuffer(gpu_, values_.size() * sizeof(float), GpuBuffer::Kind::pinned);
    write();
  }
  void write() {
    await();  // an earlier copy still reads the pinned memory
    std::memcpy(pinned_.data(), values_.data(), values_.size() * sizeof(float));
    gpu_.copy(memory_.data(), pinned_.data(), values_.size() * sizeof(float), stream_.get());
  }
  Tensor tensor() const {
    return {
        memory_.data(), Shape{static_cast<std::int64_t>(values_.size())}, DType::f32, {DeviceKind::cuda, gpu_.index()}};
  }
  void* stream() const { return stream_.get(); }
  /// The values as the program's stream sees them, behind all that it waits for.
  std::vector<float> read() {
    gpu_.copy(pinned_.data(), memory_.data(), values_.size() * sizeof(float), stream_.get());
    await();
    std::vector<float> found(values_.size());
    std::memcpy(found.data(), pinned_.data(), found.size() * sizeof(float));
    return found;
  }

 private:
  void await() {
    for (const auto point = gpu_.mark(stream_.get()); !point->passed();) std::this_thread::yield();
  }

  Gpu& gpu_;
  std::vector<float> values_;
  GpuStream stream_;
  GpuBuffer memory_, pinned_;
};

inline std::vector<float> all(std::size_t count, float value) {
  return std::vector<float>(count, value);
}

}  // namespace kolo::testing
