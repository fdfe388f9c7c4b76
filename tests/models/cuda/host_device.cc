// A GPU for tests, in place of cuda_device.cu: kernels run on the host, over their whole grid. Whoever else touches its
// memory dies by a signal.

#include "tests/models/cuda/host_device.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "tests/models/cuda/host_attention.h"
#include "tests/support/guarded_memory.h"

namespace kolo::testing {
namespace {

GuardedMemory& memory() {
  static GuardedMemory all;
  all.guard(host_devices().guarded);
  return all;
}

using Open = GuardedMemory::Open;

/// Copies from and to pinned memory run no sooner than they must, so that whoever touches it too early is found out.
class LateCopies {
 public:
  void put(std::function<void()> copy) { waiting_.push_back(std::move(copy)); }
  void run() {
    for (const auto& copy : std::exchange(waiting_, {})) copy();
  }

 private:
  std::vector<std::function<void()>> waiting_;
};

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
      if (of.bias.data != nullptr) sum += of.bias.load(column);
      if (of.add) sum += of.c.load(to);
      of.c.store(to, of.relu && sum < 0 ? 0.0f : sum);
    }
    if (of.sums == nullptr) continue;
    of.sums[row] = 0;
    for (std::int64_t k = 0; k < of.k; ++k) of.sums[row] += of.a.load(of.transpose_a ? k * of.m + row : row * of.k + k);
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
  void release(void* taken) noexcept override {
    late_->run();
    memory().release(taken);
  }
  void copy(void* to, const void* from, std::size_t bytes) override {
    const auto now = [to, from, bytes] {
      const Open open(memory());
      std::memcpy(to, from, bytes);
    };
    if (is_pinned(to) || is_pinned(from)) return late_->put(now);
    late_->run();
    now();
  }
  /// At once: no sooner may its memory be touched.
  std::unique_ptr<models::cuda::Point> copy_beside(void* to, const void* pinned, std::size_t bytes,
                                                   models::cuda::Point&) override {
    ++host_devices().copies_beside;
    const Open open(memory());
    std::memcpy(to, pinned, bytes);
    return mark();
  }
  void wait() override {
    ++host_devices().waits;
    late_->run();
  }
  std::unique_ptr<models::cuda::Point> mark() override {
    struct Mark final : models::cuda::Point {
      explicit Mark(std::shared_ptr<LateCopies> copies) : late(std::move(copies)) {}
      void wait() override { late->run(); }
      std::shared_ptr<LateCopies> late;
    };
    return std::make_unique<Mark>(late_);
  }
  void* allocate_pinned(std::size_t bytes) override {
    ++host_devices().pinned;
    const auto area = pinned_.emplace_back(std::make_unique<std::byte[]>(bytes), bytes).first.get();
    std::memset(area, 0xff, bytes);
    return area;
  }
  void release_pinned(void* taken) noexcept override {
    --host_devices().pinned;
    std::erase_if(pinned_, [&](const auto& area) { return area.first.get() == taken; });
  }

  void launch(const models::cuda::Kernel& kernel) override {
    HostDevices& all = host_devices();
    ++all.launches;
    all.kernels.resize(std::variant_size_v<models::cuda::Kernel>);
    ++all.kernels[kernel.index()];
    late_->run();
    const Open open(memory());
    std::visit([&](const auto& one) { run_grid(one, all.reversed); }, kernel);
  }
  bool multiply(const models::cuda::PlainProduct& product) override {
    ++host_devices().products;
    if (!host_devices().library) return false;
    late_->run();
    const Open open(memory());
    multiply_plainly(product);
    return true;
  }
  models::cuda::AttentionLibrary* attention() override { return host_devices().library ? &attention_ : nullptr; }

 private:
  bool is_pinned(const void* address) const {
    return std::ranges::any_of(pinned_, [&](const auto& area) {
      return address >= area.first.get() && address < area.first.get() + area.second;
    });
  }

  std::vector<std::pair<std::unique_ptr<std::byte[]>, std::size_t>> pinned_;
  std::shared_ptr<LateCopies> late_ = std::make_shared<LateCopies>();
  HostAttention attention_{*this};
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

bool has_attention_library() {
  return testing::host_devices().library;
}

std::unique_ptr<ComputeDevice> open_device(int) {
  return std::make_unique<testing::HostDevice>();
}

}  // namespace kolo::models::cuda
