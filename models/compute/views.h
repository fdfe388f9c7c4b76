#pragma once

#include <cstdint>
#include <span>

#include <kolo/tensor.h>

#include "models/compute/buffer.h"
#include "models/compute/compute.h"

namespace kolo::models {

/// The elements of a tensor, for whoever may touch them; null for an empty one.
template <class T = float>
T* data_of(const Tensor& tensor) {
  return static_cast<T*>(tensor.data);
}

/// Elements of one row of a tensor.
inline std::int64_t row_of(const Tensor& tensor) {
  return tensor.shape[tensor.shape.dims() - 1];
}
inline std::int64_t rows_of(const Tensor& tensor) {
  return tensor.elements() / row_of(tensor);
}

/// The same numbers in other extents.
Tensor reshaped(const Tensor& tensor, const Shape& shape);

/// The part of a tensor that begins at element `first`, in these extents.
Tensor part_of(const Tensor& tensor, std::int64_t first, const Shape& shape);

/// The floats of an f32 tensor, on the host: its own memory if it is there, else a copy.
class OnHost {
 public:
  /// Reads a copy, waiting until it is there. `compute` must outlive this.
  OnHost(Compute& compute, const Tensor& tensor);
  OnHost(const OnHost&) = delete;
  OnHost& operator=(const OnHost&) = delete;
  OnHost(OnHost&&) noexcept = default;
  OnHost& operator=(OnHost&&) noexcept = default;
  ~OnHost() = default;

  std::span<float> floats() const { return floats_; }
  /// Copies what was written here to where the tensor is.
  void put_back();

 private:
  Compute* compute_;
  Tensor tensor_;
  AlignedFloats copy_;
  std::span<float> floats_;
};

}  // namespace kolo::models
