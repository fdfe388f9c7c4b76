#pragma once

#include "models/compute/convolution.h"

namespace kolo::models {

/// convolve() and convolve_backward() as matrix products of the patches that filters cover, for outputs in one block.
void convolve_by_products(const ConvolutionShape& shape, const float* x, const float* w, const float* bias, float* y);
void convolve_backward_by_products(const ConvolutionShape& shape, const float* x, const float* dy, bool add, float* dw,
                                   float* dbias);

}  // namespace kolo::models
