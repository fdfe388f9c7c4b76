#pragma once

#include <cstdint>

namespace kolo::models {

/// Extents of a convolution with 3×3 filters and nothing around the image. Positive.
///
/// Inputs x are [examples, channels, height, width], weights [filters, channels, 3, 3]. Outputs lie in blocks of
/// filters, [examples, filters / block, places, block], the places row by row: what is done to all filters of a place
/// is done in vectors, and the library chooses the block.
struct ConvolutionShape {
  std::int64_t examples = 0;
  std::int64_t channels = 0;
  std::int64_t height = 0;
  std::int64_t width = 0;
  std::int64_t filters = 0;

  std::int64_t rows() const { return height - 2; }
  std::int64_t columns() const { return width - 2; }
  std::int64_t places() const { return rows() * columns(); }
  std::int64_t patch() const { return channels * 9; }  ///< numbers that go into one output
};

/// How many filters a block has: a divisor of `filters`, the same for any number of examples.
std::int64_t filter_block(const ConvolutionShape& shape);

/// y = x convolved with w, plus bias [filters]; on the calling thread alone. Thread-safe; the same shape and the same
/// numbers give the same bits in every run on one machine. One of convolution_onednn.cc and convolution_gemm.cc is
/// linked.
void convolve(const ConvolutionShape& shape, const float* x, const float* w, const float* bias, float* y);

/// dw and dbias of dy, or added to them.
void convolve_backward(const ConvolutionShape& shape, const float* x, const float* dy, bool add, float* dw,
                       float* dbias);

/// convolve() and convolve_backward() as matrix products of the patches that filters cover, for outputs in one block.
void convolve_by_products(const ConvolutionShape& shape, const float* x, const float* w, const float* bias, float* y);
void convolve_backward_by_products(const ConvolutionShape& shape, const float* x, const float* dy, bool add, float* dw,
                                   float* dbias);

}  // namespace kolo::models
