#pragma once

// The kernels for the instruction set that the including file is compiled for.

#include "models/compute/kernel_attention.h"
#include "models/compute/kernel_images.h"
#include "models/compute/kernel_rows.h"

namespace kolo::models {
namespace {

template <class Number>
constexpr Kernels kernels_of() {
  return {.narrow = narrow<Number>,
          .widen = widen<Number>,
          .rms_norm = rms_norm<Number>,
          .rms_norm_backward = rms_norm_backward<Number>,
          .split_heads = split_heads,
          .merge_heads = merge_heads<Number>,
          .swiglu = swiglu<Number>,
          .swiglu_backward = swiglu_backward<Number>,
          .attend = attend<Number>,
          .attend_backward = attend_backward<Number>,
          .cross_entropy = cross_entropy,
          .correlate = correlate,
          .correlate_back = correlate_back,
          .pool = pool,
          .pool_backward = pool_backward,
          .plane_sums = plane_sums,
          .plane_products = plane_products,
          .combine_planes = combine_planes};
}

inline constexpr KernelSet compiled_kernels{kernels_of<F32>(), kernels_of<Bf16>(), kernels_of<F16>()};

}  // namespace
}  // namespace kolo::models
