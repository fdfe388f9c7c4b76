#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "bench/kolo_bench/measure/checker.h"
#include "bench/kolo_bench/measure/storage.h"
#include "bench/kolo_bench/ranks.h"
#include "ops/gpu/gpu.h"

namespace kolo::bench {

/// Where buffers lie: in host memory, or in that of this rank's GPU. Used by one thread.
class BufferPlacement {
 public:
  virtual ~BufferPlacement() = default;

  virtual Device device() const = 0;
  /// The stream that writes the inputs; null on the host.
  virtual void* stream() const = 0;

  /// Private memory, zeroed. Throws std::bad_alloc; Error{backend}.
  virtual Storage storage(std::size_t bytes) const = 0;
  /// Makes sure that every rank can have that many bytes at once, as check_memory() does.
  virtual void check_room(const Ranks& ranks, std::size_t bytes, const std::string& advice) const = 0;

  /// Checker::fill() and wrong() on tensors of this placement; complete when they return. Throws Error{backend}.
  virtual void fill(const Checker& checker, const Work& work) const = 0;
  virtual std::int64_t wrong(const Checker& checker, const Work& work, std::optional<WrongElement>* first) const = 0;
};

/// `huge`: with huge pages.
std::unique_ptr<BufferPlacement> host_placement(bool huge);

/// `sharing`: the ranks that use that GPU.
std::unique_ptr<BufferPlacement> gpu_placement(Gpu& gpu, int sharing);

/// The GPU of the rank `local_rank` of a node. Errors: UsageError where this build or this machine has none.
Gpu& gpu_for(int local_rank);

}  // namespace kolo::bench
