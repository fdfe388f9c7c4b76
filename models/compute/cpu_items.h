#pragma once

#include <kolo/tensor.h>

#include "models/compute/kernels.h"
#include "models/compute/precision.h"

namespace kolo::models {

constexpr Precision precision_of(DType dtype) {
  if (dtype == DType::bf16) return Precision::bf16;
  return dtype == DType::f16 ? Precision::f16 : Precision::f32;
}

inline MatmulItem* items_of(const Tensor& tensor) {
  return static_cast<MatmulItem*>(tensor.data);
}

/// The kernels for the dtype of `items`.
inline const Kernels& kernels_of(const Tensor& items) {
  return kernels(precision_of(items.dtype));
}

}  // namespace kolo::models
