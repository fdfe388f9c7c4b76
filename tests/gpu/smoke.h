#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "ops/gpu/gpu.h"
#include "tests/gpu/checks.h"

namespace kolo::smoke {

// The checks, in groups; each group is independent of the others.

void check_kernels(Checks& checks, Gpu& gpu);
void check_streams(Checks& checks, Gpu& gpu);
void check_products(Checks& checks);
void check_attention(Checks& checks);
void check_sequences(Checks& checks);
void check_images(Checks& checks);
void check_models(Checks& checks);
void check_nccl(Checks& checks, Gpu& gpu);

inline void wait(const DevicePoint& point) {
  while (!point.passed()) std::this_thread::yield();
}
/// Waits for all that is on a stream.
inline void wait(Gpu& gpu, void* stream) {
  wait(*gpu.mark(stream));
}

/// Memory of the GPU with these bytes in it.
inline GpuBuffer on_gpu(Gpu& gpu, std::span<const std::byte> bytes) {
  GpuBuffer buffer(gpu, bytes.size());
  gpu.copy(buffer.data(), bytes.data(), bytes.size());
  return buffer;
}
inline std::vector<std::byte> bytes_of(Gpu& gpu, const std::byte* from, std::size_t bytes) {
  std::vector<std::byte> copy(bytes);
  gpu.copy(copy.data(), from, bytes);
  return copy;
}

}  // namespace kolo::smoke
