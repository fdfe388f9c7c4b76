#pragma once

#include <cstdint>
#include <span>

#include "models/model.h"

namespace kolo::models {

/// Extents of a fully connected layer at work: x [examples, inputs], w [outputs, inputs], y [examples, outputs].
/// Positive.
struct DenseShape {
  std::int64_t examples = 0;
  std::int64_t inputs = 0;
  std::int64_t outputs = 0;
};

enum class Activation : bool { none, relu };

/// What becomes of the numbers that a parameter's gradient held before.
enum class Gradient : bool { overwrite, add };

/// y = x·wᵀ + bias, through max(0, ·) if `activation` says so. `y` is overwritten.
void dense_forward(const DenseShape& shape, const float* x, const float* w, const float* bias, Activation activation,
                   float* y);

/// dw [outputs, inputs] = dyᵀ·x: the sum over the examples.
void dense_backward_weight(const DenseShape& shape, const float* x, const float* dy, float* dw, Gradient gradient);

/// dx [examples, inputs] = dy·w. `dx` is overwritten.
void dense_backward_input(const DenseShape& shape, const float* dy, const float* w, float* dx);

/// dbias [units] = the sum of the rows of dy [examples, units].
void bias_gradient(std::int64_t examples, std::int64_t units, const float* dy, float* dbias, Gradient gradient);

/// Zeroes the elements of dy [examples, units] whose y is not positive (back through max(0, ·)) and, in the same pass,
/// writes what bias_gradient() of the result would.
void relu_backward(std::int64_t examples, std::int64_t units, const float* y, float* dy, float* dbias,
                   Gradient gradient);

/// Cross-entropy of softmax(logits) against the targets, summed over the examples but for those of target -1.
///
/// logits    [examples, classes]
/// targets   [examples], each in 0 … classes-1, or -1
/// d_logits  [examples, classes], overwritten with the gradient of scale·sum; may be `logits`; null if not wanted.
///           Elements below 1e-20 become 0: they would turn into denormals, which cost a hundred times as much, on the
///           way back.
/// Of equal largest logits the first counts. Errors: a target out of range is a ModelError, thrown before anything is
/// written.
BatchResult softmax_cross_entropy(std::int64_t examples, std::int64_t classes, const float* logits,
                                  std::span<const std::int32_t> targets, float* d_logits, float scale = 1);

}  // namespace kolo::models
