#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>

#include <kolo/session.h>

#include "models/compute/aligned.h"

namespace kolo::train {

/// "3.2 GiB", "17 MiB", "512 bytes".
std::string format_bytes(std::size_t bytes);

/// Runs `work`, which allocates. Errors: instead of std::bad_alloc a models::ModelError that says what there was no
/// memory for.
///
/// what  "the gradients (12.8 MiB)"
void allocating(const std::string& what, const std::function<void()>& work);

/// From now on operator new finds a few MiB more when there are none left, once: enough for the ranks to tell each
/// other, and for one to say it.
void keep_memory_in_reserve();

/// Errors: models::ModelError if the reserve was needed: it says what for, if that was within allocating().
void check_reserve();

/// From now on this process is refused, as by `ulimit -d`, what exceeds its share of the memory that is left now, on
/// this machine or to its control group: the kernel promises more than there is, and ends a process that takes it. All
/// ranks of the machine should be at this point together.
///
/// ranks  of this machine, which share what is left evenly
void limit_memory(int ranks);

/// Errors: models::ModelError if this process may not take so many bytes more.
///
/// what  "the parameters and their gradients"
void check_available(std::size_t bytes, const std::string& what);

/// Memory that other ranks of the node can reach. Errors: models::ModelError if there is not enough.
///
/// what  "the gradients (12.8 MiB)"
Memory shared_memory(Session& session, std::size_t bytes, const std::string& what);

/// Numbers that other ranks of the node can reach, so that they are reduced without a copy; in a world of one ordinary
/// memory.
class SharedFloats {
 public:
  /// what  for messages: "the gradients"
  /// Errors: models::ModelError if there is not enough memory.
  SharedFloats(Session& session, std::size_t count, const std::string& what);

  std::span<float> all() const { return all_; }

 private:
  Memory memory_;
  models::AlignedFloats own_;
  std::span<float> all_;
};

/// The most memory that this process had at a time so far, in bytes.
std::size_t peak_memory();

}  // namespace kolo::train
