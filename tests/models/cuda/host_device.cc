// A GPU for tests, in place of cuda_device.cu: kernels run on the host, over their whole grid. Whoever else touches its
// memory dies by a signal.

#include "tests/models/cuda/host_device.h"

#include <cmath>
#include <cstring>
#include <memory>

#include "tests/support/guarded_memory.h"

namespace kolo::testing {
namespace {

GuardedMemory& memory() {
  static GuardedMemory all;
  all.guard(host_devices().guarded);
  return all;
}

using Open = GuardedMemory::Open;

/// In the order in which plain loops come to it.
void multiply_plainly(const models::cuda::PlainProduct& of) {
  for (std::int64_t row = 0; row < of.m; ++row) {
    for (std::int64_t column = 0; column < of.n; ++column) {
      float sum = 0;
      for (std::int64_t k = 0; k < of.k; ++k) {
        sum += of.a.load(of.transpose_a ? k * of.m + row : row * of.k + k) *
               of.b.load(of.transpose_b ? column * of.k + k : k * of.n + column);
      }
      const std::int64_t to = row * of.n + column;
      if (of.bias != nullptr) sum += of.bias[column];
      if (of.add) sum += of.c.load(to);
      of.c.store(to, of.relu && sum < 0 ? 0.0f : sum);
    }
  }
}

class HostDevice final : public models::cuda::ComputeDevice {
 public:
  void* allocate(std::size_t bytes) override {
    ++host_devices().allocations;
    void* const taken = memory().allocate(bytes);
    if (taken == nullptr) return nullptr;
    const Open open(memory());
    std::memset(taken, 0xff, GuardedMemory::whole(bytes));  // not-a-number, as f32, f64 and 16-bit floats
    return taken;
  }
  void release(void* taken) noexcept override { memory().release(taken); }
  void copy(void* to, const void* from, std::size_t bytes) override {
    const Open open(memory());
    std::memcpy(to, from, bytes);
  }
  void wait() override { ++host_devices().waits; }

  void launch(const models::cuda::Kernel& kernel) override {
    HostDevices& all = host_devices();
    ++all.launches;
    all.kernels.resize(std::variant_size_v<models::cuda::Kernel>);
    ++all.kernels[kernel.index()];
    const Open open(memory());
    std::visit([&](const auto& one) { run_grid(one, all.reversed); }, kernel);
  }
  bool multiply(const models::cuda::PlainProduct& product) override {
    ++host_devices().products;
    if (!host_devices().library) return false;
    const Open open(memory());
    multiply_plainly(product);
    return true;
  }
};

}  // namespace

HostDevices& host_devices() {
  static HostDevices all;
  return all;
}

bool has_gpu() {
  return true;
}

std::size_t host_device_bytes() {
  return memory().bytes();
}

}  // namespace kolo::testing

namespace kolo::models::cuda {

std::unique_ptr<ComputeDevice> open_device(int) {
  return std::make_unique<testing::HostDevice>();
}

}  // namespace kolo::models::cuda
