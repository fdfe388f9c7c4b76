// Convolutions where no library has any.

#include "models/compute/convolution.h"

namespace kolo::models {

std::int64_t filter_block(const ConvolutionShape& shape) {
  return shape.filters;
}

void convolve(const ConvolutionShape& shape, const float* x, const float* w, const float* bias, float* y) {
  convolve_by_products(shape, x, w, bias, y);
}

void convolve_backward(const ConvolutionShape& shape, const float* x, const float* dy, bool add, float* dw,
                       float* dbias) {
  convolve_backward_by_products(shape, x, dy, add, dw, dbias);
}

}  // namespace kolo::models
