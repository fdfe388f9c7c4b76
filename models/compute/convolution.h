#pragma once

#include <cstdint>

namespace kolo::models {

/// Extents of a convolution with square filters. Positive, but for the padding, and rows() and columns() are.
///
/// Inputs x are [examples, channels, height, width], weights [filters, channels, kernel, kernel]. Outputs are blocked
/// by filters, [examples, filters / block, places, block], where a place is a pixel of the output, row by row:
/// operations on all filters of a place are vectorised. The library chooses the block.
struct ConvolutionShape {
  std::int64_t examples = 0;
  std::int64_t channels = 0;
  std::int64_t height = 0;
  std::int64_t width = 0;
  std::int64_t filters = 0;
  std::int64_t kernel = 3;
  std::int64_t stride = 1;
  std::int64_t padding = 0;  ///< zeros on each side

  std::int64_t rows() const { return (height + 2 * padding - kernel) / stride + 1; }
  std::int64_t columns() const { return (width + 2 * padding - kernel) / stride + 1; }
  std::int64_t places() const { return rows() * columns(); }
  std::int64_t patch() const { return channels * kernel * kernel; }  ///< inputs of one output
};

/// The number of filters in a block: a divisor of `filters`, independent of the number of examples.
std::int64_t filter_block(const ConvolutionShape& shape);

/// y = x convolved with w, plus bias [filters]; runs on the calling thread only. Thread-safe; the same shape and the
/// same numbers give the same bits in every run on one machine. One of convolution_onednn.cc and convolution_gemm.cc is
/// linked.
void convolve(const ConvolutionShape& shape, const float* x, const float* w, const float* bias, float* y);

/// Overwrites dw and dbias with the gradients by dy, or adds them with `add`.
void convolve_backward(const ConvolutionShape& shape, const float* x, const float* dy, bool add, float* dw,
                       float* dbias);

/// dx [examples, channels, height, width], overwritten: the gradient of x by dy.
void convolve_input_backward(const ConvolutionShape& shape, const float* w, const float* dy, float* dx);

/// convolve() and convolve_backward() as matrix products of the patches that filters cover, for outputs in one block.
void convolve_by_products(const ConvolutionShape& shape, const float* x, const float* w, const float* bias, float* y);
void convolve_backward_by_products(const ConvolutionShape& shape, const float* x, const float* dy, bool add, float* dw,
                                   float* dbias);

}  // namespace kolo::models
