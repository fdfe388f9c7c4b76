#pragma once

#include <array>
#include <cstddef>

#include "models/compute/buffer.h"

namespace kolo::models {

/// Where a batch's tensors arrive on a device: two halves of memory, in turn, so that the next batch is copied while
/// the one before it is in use.
class Arrivals {
 public:
  /// Copies of tensors of the host, which may be used again; valid until the call after the next one. `compute`, always
  /// the same, must outlive this. Errors: ModelError if there is no memory.
  std::array<Tensor, 2> receive(Compute& compute, const std::array<Tensor, 2>& of_host);

  std::size_t bytes() const { return memory_.bytes(); }

 private:
  Buffer memory_;
  bool second_ = false;  // which half is next
};

}  // namespace kolo::models
