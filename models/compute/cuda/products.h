#pragma once

#include <memory>

#include "models/compute/cuda/tile_kernels.h"

namespace kolo::models::cuda {

/// Products by a library.
class ProductLibrary {
 public:
  virtual ~ProductLibrary() = default;

  /// Puts the product on the default stream of the GPU that is current; false, and nothing done, where the library has
  /// no algorithm for it. Errors: ModelError with the call's name.
  virtual bool multiply(const PlainProduct& product) = 0;
};

/// cuBLASLt, opened when it is asked for; null where it is not installed.
///
/// workspace  `workspace_bytes` of the GPU's memory; it must outlive the library's use
std::unique_ptr<ProductLibrary> open_cublas_lt(void* workspace);

inline constexpr std::size_t workspace_bytes = std::size_t{32} << 20;  // what NVIDIA recommends for Hopper

}  // namespace kolo::models::cuda
