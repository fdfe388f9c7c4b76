#pragma once

#include <cstddef>
#include <span>
#include <string>

#include <kolo/session.h>

#include "models/compute/buffer.h"

namespace kolo {

/// "3.2 GiB", "17 MiB", "512 bytes".
std::string format_bytes(std::size_t bytes);

/// Limits this process, as `ulimit -d` does, to an even part of the memory that is left on this machine or to its
/// control group. Linux promises more than there is and kills a process that takes it; below the limit an allocation
/// fails, and the ranks agree on an error. All ranks of the machine call this at about the same time.
///
/// ranks  of this machine
void limit_memory(int ranks);

/// Keeps a few MiB for the ranks to agree on that error: operator new finds them once when there are none left.
void reserve_memory();

/// Errors: std::bad_alloc if the reserve was needed.
void check_reserve();

/// Memory that other ranks of the node can reach; it counts towards the limit. Errors: std::bad_alloc.
Memory shared_memory(Session& session, std::size_t bytes);

/// Numbers that other ranks of the node can reach, so that they are reduced without a copy; in a world of one ordinary
/// memory.
class SharedFloats {
 public:
  /// Errors: std::bad_alloc.
  SharedFloats(Session& session, std::size_t count);

  std::span<float> all() const { return all_; }

 private:
  Memory memory_;
  models::AlignedFloats own_;
  std::span<float> all_;
};

/// The peak memory of this process so far, in bytes.
std::size_t peak_memory();

}  // namespace kolo
