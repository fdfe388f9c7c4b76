#pragma once

#include <cstddef>
#include <string>

#include <kolo/session.h>

#include "models/compute/buffer.h"

namespace kolo {

/// "3.2 GiB", "17 MiB", "512 bytes".
std::string format_bytes(std::size_t bytes);

/// Limits this process, as `ulimit -d` does, to an even share of the free memory of this machine or its control group.
/// Linux overcommits memory and kills processes that use it up; with the limit an allocation fails instead, and the
/// ranks agree on an error. All ranks of the machine call this at about the same time.
///
/// ranks  the number of ranks on this machine
void limit_memory(int ranks);

/// Reserves a few MiB for the agreement on that error: operator new frees them once when no memory is left.
void reserve_memory();

/// Errors: std::bad_alloc if the reserve was needed.
void check_reserve();

/// Memory shared with the other ranks of the node, which counts towards the limit; or of a GPU. Errors: std::bad_alloc.
Memory shared_memory(Session& session, std::size_t bytes, Device device = {});

/// Floats in memory shared with the other ranks of the node, so that reductions need no copy; in a world of one,
/// private memory. Or in a GPU's.
class SharedFloats {
 public:
  /// Errors: std::bad_alloc.
  SharedFloats(Session& session, std::size_t count, Device device = {});

  const Tensor& all() const { return all_; }

 private:
  Memory memory_;
  models::AlignedFloats own_;
  Tensor all_;
};

/// The peak memory of this process so far, in bytes.
std::size_t peak_memory();

}  // namespace kolo
