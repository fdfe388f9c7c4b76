#pragma once

#include <map>

#include "models/compute/cuda/device.h"

namespace kolo::models::cuda {

/// A GPU that is not there: its memory is counted, and nothing is computed.
class PlannedDevice final : public ComputeDevice {
 public:
  /// Most bytes that were allocated at one time.
  std::size_t most_bytes() const { return most_; }

  void* allocate(std::size_t bytes) override;
  void release(void* memory) noexcept override;
  void copy(void*, const void*, std::size_t) override {}
  void wait() override {}
  std::unique_ptr<Point> mark() override;
  void* allocate_pinned(std::size_t bytes) override;
  void release_pinned(void* memory) noexcept override;
  void launch(const Kernel&) override {}
  bool multiply(const PlainProduct&) override { return true; }

 private:
  std::map<void*, std::size_t> held_;  // by addresses that nothing is at
  std::size_t next_ = std::size_t{1} << 40, bytes_ = 0, most_ = 0;
};

}  // namespace kolo::models::cuda
