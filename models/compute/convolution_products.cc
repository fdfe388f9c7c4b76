#include "models/compute/convolution.h"

#include <algorithm>

#include "models/compute/buffer.h"
#include "models/compute/gemm.h"

namespace kolo::models {
namespace {

/// Calls body(offset in the image, how many pixels of a row) for each row of each patch of one image, or with nothing
/// for a row that lies in the padding; patches are [places, channels·kernel·kernel].
template <class Body>
void for_patch_rows(const ConvolutionShape& shape, Body body) {
  for (std::int64_t row = 0; row < shape.rows(); ++row) {
    for (std::int64_t column = 0; column < shape.columns(); ++column) {
      const std::int64_t top = row * shape.stride - shape.padding, left = column * shape.stride - shape.padding;
      for (std::int64_t channel = 0; channel < shape.channels; ++channel) {
        for (std::int64_t y = top; y < top + shape.kernel; ++y) {
          const bool inside = y >= 0 && y < shape.height;
          const std::int64_t first = std::max<std::int64_t>(0, -left);
          const std::int64_t last = inside ? std::min(shape.kernel, shape.width - left) : first;
          body((channel * shape.height + y) * shape.width + left, first, std::max(first, last));
        }
      }
    }
  }
}

/// The patches of one image that filters are multiplied with.
const float* patches_of(const ConvolutionShape& shape, const float* image) {
  thread_local AlignedFloats patches;
  patches.resize(static_cast<std::size_t>(shape.places() * shape.patch()));
  float* out = patches.data();
  for_patch_rows(shape, [&](std::int64_t at, std::int64_t first, std::int64_t last) {
    if (last - first < shape.kernel) std::fill_n(out, shape.kernel, 0.0f);
    if (first < last) std::copy_n(image + at + first, last - first, out + first);
    out += shape.kernel;
  });
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

void convolve_input_backward(const ConvolutionShape& shape, const float* w, const float* dy, float* dx) {
  thread_local AlignedFloats ordered, patches;  // dy of one image as [places, filters], and the gradients of patches
  const std::int64_t image = shape.channels * shape.height * shape.width, block = filter_block(shape);
  const std::int64_t places = shape.places();
  ordered.resize(static_cast<std::size_t>(places * shape.filters));
  patches.resize(static_cast<std::size_t>(places * shape.patch()));
  std::fill_n(dx, shape.examples * image, 0.0f);
  for (std::int64_t example = 0; example < shape.examples; ++example, dx += image) {
    for (std::int64_t filter = 0; filter < shape.filters; filter += block, dy += places * block) {
      for (std::int64_t place = 0; place < places; ++place) {
        std::copy_n(dy + place * block, block, ordered.data() + place * shape.filters + filter);
      }
    }
    gemm({.m = places, .n = shape.patch(), .k = shape.filters}, ordered.data(), w, patches.data());
    const float* from = patches.data();
    for_patch_rows(shape, [&](std::int64_t at, std::int64_t first, std::int64_t last) {
      for (std::int64_t i = first; i < last; ++i) dx[at + i] += from[i];
      from += shape.kernel;
    });
  }
}

}  // namespace kolo::models
