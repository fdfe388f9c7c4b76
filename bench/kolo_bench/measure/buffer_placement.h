#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include <kolo/memory.h>

#include "bench/kolo_bench/measure/checker.h"
#include "bench/kolo_bench/ranks.h"
#include "ops/gpu/gpu.h"

namespace kolo::bench {

/// Memory for tensors, touched before anything is timed.
class Storage {
 public:
  Storage() = default;

  /// Pages of this process, of 4 KiB, or huge ones if the system gives them. Throws std::bad_alloc.
  static Storage private_pages(std::size_t bytes, bool huge);
  /// Zeros in a GPU's memory. Throws Error{backend}.
  static Storage on_gpu(Gpu& gpu, std::size_t bytes);
  /// Memory that a session or a world allocated; on the host with huge pages if `huge`.
  static Storage of_memory(Memory memory, bool huge);

  Storage(Storage&& other) noexcept;
  Storage& operator=(Storage&& other) noexcept;
  ~Storage();

  std::byte* data() const { return data_; }

 private:
  void* mapping_ = nullptr;
  std::size_t mapped_ = 0;
  Memory memory_;
  GpuBuffer on_gpu_;
  std::byte* data_ = nullptr;
};

/// Makes sure that all ranks of a node can allocate that many bytes each. Collective. Otherwise one rank prints the
/// free memory and `advice`, and UsageError::reported() is thrown on every rank.
void check_memory(const Ranks& ranks, std::size_t bytes, const std::string& advice);

/// a + b and a * b. Errors: UsageError if that is more than any machine can address.
std::size_t checked_sum(std::size_t a, std::size_t b);
std::size_t checked_product(std::size_t a, std::size_t b);

/// Where buffers lie: in host memory, or in that of this rank's GPU. Used by one thread.
class BufferPlacement {
 public:
  virtual ~BufferPlacement() = default;

  virtual Device device() const = 0;
  /// The stream that writes the inputs; null on the host.
  virtual void* stream() const = 0;

  /// Private memory, zeroed. Throws std::bad_alloc; Error{backend}.
  virtual Storage storage(std::size_t bytes) const = 0;
  /// As check_memory(): makes sure that every rank can allocate that many bytes.
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
