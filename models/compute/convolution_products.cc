#include "models/compute/convolution.h"

#include <algorithm>

#include "models/compute/buffer.h"
#include "models/compute/gemm.h"

namespace kolo::models {
namespace {

/// The patches of one image that filters are multiplied with, [places, channels·3·3].
const float* patches_of(const ConvolutionShape& shape, const float* image) {
  thread_local AlignedFloats patches;
  patches.resize(static_cast<std::size_t>(shape.places() * shape.patch()));
  float* out = patches.data();
  for (std::int64_t row = 0; row < shape.rows(); ++row) {
    for (std::int64_t column = 0; column < shape.columns(); ++column) {
      for (std::int64_t channel = 0; channel < shape.channels; ++channel) {
        for (std::int64_t y = row; y < row + 3; ++y, out += 3) {
          std::copy_n(image + (channel * shape.height + y) * shape.width + column, 3, out);
        }
      }
    }
  }
  return patches.data();
}

}  // namespace

void convolve_by_products(const ConvolutionShape& shape, const float* x, const float* w, const float* bias, float* y) {
  const std::int64_t image = shape.channels * shape.height * shape.width, outputs = shape.places() * shape.filters;
  for (std::int64_t example = 0; example < shape.examples; ++example) {
    float* const out = y + example * outputs;
    for (std::int64_t place = 0; place < shape.places(); ++place) {
      std::copy_n(bias, shape.filters, out + place * shape.filters);
    }
    gemm({.m = shape.places(), .n = shape.filters, .k = shape.patch(), .transpose_b = true, .beta = 1},
         patches_of(shape, x + example * image), w, out);
  }
}

void convolve_backward_by_products(const ConvolutionShape& shape, const float* x, const float* dy, bool add, float* dw,
                                   float* dbias) {
  const std::int64_t image = shape.channels * shape.height * shape.width, outputs = shape.places() * shape.filters;
  if (!add) std::fill_n(dw, shape.filters * shape.patch(), 0.0f);
  if (!add) std::fill_n(dbias, shape.filters, 0.0f);
  for (std::int64_t example = 0; example < shape.examples; ++example) {
    const float* const d_out = dy + example * outputs;
    gemm({.m = shape.filters, .n = shape.patch(), .k = shape.places(), .transpose_a = true, .beta = 1}, d_out,
         patches_of(shape, x + example * image), dw);
    for (std::int64_t place = 0; place < shape.places(); ++place) {
      for (std::int64_t filter = 0; filter < shape.filters; ++filter) {
        dbias[filter] += d_out[place * shape.filters + filter];
      }
    }
  }
}

}  // namespace kolo::models
