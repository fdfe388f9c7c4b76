#pragma once

#include <cstddef>
#include <deque>
#include <memory>

#include "models/compute/compute.h"
#include "models/compute/cuda/device.h"

namespace kolo::models::cuda {

/// Copies between a GPU and host memory that is not pinned, through pinned memory: the host waits only where all of
/// that is in use.
class Staging {
 public:
  explicit Staging(ComputeDevice& device) : device_(&device) {}
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  /// `from` may be used again once this returns. Behind what the GPU was told so far; or, if that is not null, behind
  /// `behind` alone.
  void upload(void* to, const void* from, std::size_t bytes, Point* behind = nullptr);
  /// The result must not outlive this.
  std::unique_ptr<Reading> download(const void* from, std::size_t bytes);

 private:
  struct Pinned {
    void* memory = nullptr;
    std::size_t bytes = 0;
    std::unique_ptr<Point> used;  ///< until then; null: free
  };
  struct Download;
  Pinned take(std::size_t bytes);

  ComputeDevice* device_;
  std::deque<Pinned> idle_;  // what was used longest ago first
};

}  // namespace kolo::models::cuda
