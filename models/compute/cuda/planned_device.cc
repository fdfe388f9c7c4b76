#include "models/compute/cuda/planned_device.h"

#include <algorithm>
#include <cstdlib>

namespace kolo::models::cuda {
namespace {

struct NoPoint final : Point {
  void wait() override {}
};

}  // namespace

void* PlannedDevice::allocate(std::size_t bytes) {
  constexpr std::size_t alignment = 256;
  void* const address = reinterpret_cast<void*>(next_);  // NOLINT(performance-no-int-to-ptr): nobody looks there
  next_ += (bytes / alignment + 1) * alignment;
  held_.emplace(address, bytes);
  bytes_ += bytes;
  most_ = std::max(most_, bytes_);
  return address;
}

void PlannedDevice::release(void* memory) noexcept {
  const auto found = held_.find(memory);
  if (found == held_.end()) return;
  bytes_ -= found->second;
  held_.erase(found);
}

std::unique_ptr<Point> PlannedDevice::mark() {
  return std::make_unique<NoPoint>();
}

void* PlannedDevice::allocate_pinned(std::size_t bytes) {
  return std::malloc(bytes);
}

void PlannedDevice::release_pinned(void* memory) noexcept {
  std::free(memory);
}

}  // namespace kolo::models::cuda
