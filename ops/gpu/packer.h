#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "ops/gpu/gpu.h"

namespace kolo {

/// Launches lists of pack items on one stream: short lists as arguments, long ones as tables that are copied to the GPU
/// first. Tables are used again once the stream has read them; nothing waits.
class Packer final {
 public:
  Packer(Gpu& gpu, void* stream) : gpu_(gpu), stream_(stream) {}

  /// Puts one launch on the stream for all of `items`, however many. Throws Error{backend}.
  void run(std::vector<PackItem> items, const Conversion& how);

 private:
  struct Table {
    GpuBuffer pinned;
    GpuBuffer on_gpu;
    std::shared_ptr<const DevicePoint> read;  // by the launch that used it last
  };
  static constexpr std::size_t shortest_table = std::size_t{1} << 17;  // bytes: 4096 items

  Table& free_table(std::size_t bytes);

  Gpu& gpu_;
  void* stream_;
  std::deque<Table> tables_;
};

}  // namespace kolo
