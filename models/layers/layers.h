#pragma once

#include <cstdint>
#include <span>

#include "models/model/model.h"

namespace kolo::models {

enum class Activation : bool { none, relu };

/// Whether a parameter's gradient is overwritten or accumulated.
enum class Gradient : bool { overwrite, add };

/// y [examples, units] += bias [units], then through max(0, ·) if `activation` says so.
void add_bias(std::int64_t examples, std::int64_t units, const float* bias, Activation activation, float* y);

/// dbias [units] = the sum of the rows of dy [examples, units].
void bias_gradient(std::int64_t examples, std::int64_t units, const float* dy, float* dbias, Gradient gradient);

/// Backward of ReLU and bias in one pass: zeroes the elements of dy [examples, units] whose y is not positive, and
/// computes bias_gradient() of the result.
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
