#include "models/layers/layers.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "models/compute/kernels.h"
#include "models/util/error.h"

namespace kolo::models {

void add_bias(std::int64_t examples, std::int64_t units, const float* bias, Activation activation, float* y) {
  const float floor =
      activation == Activation::relu ? 0.0f : -INFINITY;  // one loop for both, still vector instructions
  for (std::int64_t example = 0; example < examples; ++example) {
    float* const row = y + example * units;
    for (std::int64_t i = 0; i < units; ++i) {
      const float sum = row[i] + bias[i];
      row[i] = sum < floor ? floor : sum;
    }
  }
}

void bias_gradient(std::int64_t examples, std::int64_t units, const float* dy, float* dbias, Gradient gradient) {
  if (gradient == Gradient::overwrite) std::fill_n(dbias, units, 0.0f);
  for (std::int64_t example = 0; example < examples; ++example) {
    const float* const row = dy + example * units;
    for (std::int64_t i = 0; i < units; ++i) dbias[i] += row[i];
  }
}

void relu_backward(std::int64_t examples, std::int64_t units, const float* y, float* dy, float* dbias,
                   Gradient gradient) {
  if (gradient == Gradient::overwrite) std::fill_n(dbias, units, 0.0f);
  for (std::int64_t example = 0; example < examples; ++example) {
    const float* const out = y + example * units;
    float* const row = dy + example * units;
    for (std::int64_t i = 0; i < units; ++i) {
      row[i] = out[i] > 0 ? row[i] : 0.0f;
      dbias[i] += row[i];
    }
  }
}

namespace {

void check_targets(std::int64_t classes, std::span<const std::int32_t> targets) {
  const auto wrong = std::find_if(targets.begin(), targets.end(), [&](auto t) { return t < -1 || t >= classes; });
  if (wrong == targets.end()) return;
  throw ModelError(fmt::format("target {} is out of range (the model has {} classes); check the labels and the sizes",
                               *wrong, classes));
}

}  // namespace

BatchResult softmax_cross_entropy(std::int64_t examples, std::int64_t classes, const float* logits,
                                  std::span<const std::int32_t> targets, float* d_logits, float scale) {
  check_targets(classes, targets);
  const Kernels& loops = kernels(Precision::f32);
  BatchResult result;
  for (std::int64_t example = 0; example < examples; ++example) {
    const std::int32_t target = targets[static_cast<std::size_t>(example)];
    float* const d_row = d_logits == nullptr ? nullptr : d_logits + example * classes;
    if (target < 0) {
      if (d_row != nullptr) std::fill_n(d_row, classes, 0.0f);
      continue;
    }
    std::int64_t largest = 0;
    result.loss_sum += loops.cross_entropy(classes, logits + example * classes, target, scale, d_row, &largest);
    result.correct += largest == target;
    ++result.targets;
  }
  return result;
}

}  // namespace kolo::models
