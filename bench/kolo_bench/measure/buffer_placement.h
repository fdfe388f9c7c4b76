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

/// Where the tensors that are measured lie: memory of the host, or of this rank's GPU. Used by one thread.
class BufferPlacement {
 public:
  virtual ~BufferPlacement() = default;

  virtual Device device() const = 0;
  /// The stream that writes the inputs; null on the host.
  virtual void* stream() const = 0;

  /// Memory of this process's own, zeroed. Throws std::bad_alloc; Error{backend}.
  virtual Storage storage(std::size_t bytes) const = 0;
  /// Makes sure that every rank can have so many bytes at once, as check_memory() does.
  virtual void check_room(const Ranks& ranks, std::size_t bytes, const std::string& advice) const = 0;

  /// What the checker does of that name, with tensors that lie here. They hold their values when it returns. Throws
  /// Error{backend}.
  virtual void fill(const Checker& checker, const Work& work) const = 0;
  virtual std::int64_t wrong(const Checker& checker, const Work& work, std::optional<WrongElement>* first) const = 0;
};

/// `huge`: huge pages.
std::unique_ptr<BufferPlacement> host_placement(bool huge);

/// `sharing`: how many ranks use that gpu.
std::unique_ptr<BufferPlacement> gpu_placement(Gpu& gpu, int sharing);

/// The gpu of a rank that is number `local_rank` of its node. Errors: UsageError where this build or this machine has
/// none.
Gpu& gpu_for(int local_rank);

}  // namespace kolo::bench
