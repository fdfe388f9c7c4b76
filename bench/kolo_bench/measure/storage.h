#pragma once

#include <cstddef>
#include <string>

#include <kolo/memory.h>

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

/// Makes sure that every rank of a node can have that many bytes at once. Collective; on too little throws
/// UsageError::reported() on every rank, and one prints how much is free, and `advice`.
void check_memory(const Ranks& ranks, std::size_t bytes, const std::string& advice);

/// a + b and a * b. Errors: UsageError if that is more than any machine can address.
std::size_t checked_sum(std::size_t a, std::size_t b);
std::size_t checked_product(std::size_t a, std::size_t b);

}  // namespace kolo::bench
