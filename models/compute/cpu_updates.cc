// Compiled without fused multiply-adds, which would round differently: updates are the same bits everywhere.

#include <algorithm>
#include <array>
#include <cmath>

#include "models/compute/cpu_compute.h"
#include "models/compute/denormals.h"

namespace kolo::models {
namespace {

constexpr std::int64_t piece = 4096;  // elements; gradients are in the nearest cache when they are used a second time

/// Eight sums at a time fill vector registers.
double sum_of_piece(const float* values, std::int64_t count) {
  std::array<double, 8> sums{};
  const auto lanes = static_cast<std::int64_t>(sums.size()), whole = count / lanes * lanes;
  for (std::int64_t i = 0; i < whole; i += lanes) {
    for (std::int64_t lane = 0; lane < lanes; ++lane) {
      const double value = values[i + lane];
      sums[static_cast<std::size_t>(lane)] += value * value;
    }
  }
  for (std::int64_t i = whole; i < count; ++i) sums[0] += static_cast<double>(values[i]) * values[i];
  double total = 0;
  for (const double sum : sums) total += sum;
  return total;
}

/// Calls body(first, count) for the pieces of a gradient. Returns its sum of squares, if `squares` says so.
template <class Body>
double for_pieces(const Tensor& gradient, bool squares, Body body) {
  const std::int64_t count = gradient.elements();
  double sum = 0;
  for (std::int64_t first = 0; first < count; first += piece) {
    const std::int64_t here = std::min(piece, count - first);
    if (squares) sum += sum_of_piece(data_of(gradient) + first, here);
    body(first, here);
  }
  return sum;
}

}  // namespace

void CpuCompute::sums_of_squares(std::span<const Tensor> tensors, const Tensor& sums) {
  const DenormalsAreZero in_here;
  double* to = data_of<double>(sums);
  for (const Tensor& tensor : tensors) *to++ = for_pieces(tensor, true, [](std::int64_t, std::int64_t) {});
}

void CpuCompute::clip(double factor, double most, const Tensor& squares, const Tensor& scale) {
  double sum = 0;
  for (std::int64_t i = 0; i < squares.elements(); ++i) sum += data_of<double>(squares)[i];
  const double norm = factor * std::sqrt(sum);
  const bool finite = std::isfinite(norm);
  data_of(scale)[0] = finite ? static_cast<float>(factor * clip_factor(norm, most)) : 0.0f;
  data_of(scale)[1] = finite ? 1.0f : 0.0f;
}

void CpuCompute::sgd(const SgdStep& step, std::span<const UpdatedTensor> tensors, const Tensor& squares) {
  if (data_of(step.gradient_scale)[1] == 0) return;
  const DenormalsAreZero in_here;
  const float momentum = step.momentum, lr = step.lr, scale = *data_of(step.gradient_scale);
  double* sums = data_of<double>(squares);
  for (const UpdatedTensor& tensor : tensors) {
    const double sum = for_pieces(tensor.gradient, sums != nullptr, [&](std::int64_t first, std::int64_t count) {
      float* const __restrict value = data_of(tensor.value) + first;
      float* const __restrict velocity = data_of(tensor.first) + first;
      const float* const __restrict gradient = data_of(tensor.gradient) + first;
      for (std::int64_t i = 0; i < count; ++i) {
        velocity[i] = momentum * velocity[i] + scale * gradient[i];
        value[i] -= lr * velocity[i];
      }
    });
    if (sums != nullptr) *sums++ = sum;
  }
}

void CpuCompute::adam(const AdamStep& step, std::span<const UpdatedTensor> tensors, const Tensor& squares) {
  if (data_of(step.gradient_scale)[1] == 0) return;
  const DenormalsAreZero in_here;
  const auto t = static_cast<double>(step.step);
  const auto beta1 = static_cast<float>(step.beta1), rest1 = static_cast<float>(1 - step.beta1);
  const auto beta2 = static_cast<float>(step.beta2), rest2 = static_cast<float>(1 - step.beta2);
  const auto step_size = static_cast<float>(step.lr / (1 - std::pow(step.beta1, t)));
  const auto root_scale = static_cast<float>(1 / std::sqrt(1 - std::pow(step.beta2, t)));
  const auto eps = static_cast<float>(step.eps);
  const float scale = *data_of(step.gradient_scale);
  double* sums = data_of<double>(squares);
  for (const UpdatedTensor& tensor : tensors) {
    const auto kept = static_cast<float>(step.decoupled ? 1 - step.lr * tensor.decay : 1);
    const auto pull = static_cast<float>(step.decoupled ? 0 : tensor.decay);
    const double sum = for_pieces(tensor.gradient, sums != nullptr, [&](std::int64_t first, std::int64_t count) {
      float* const __restrict value = data_of(tensor.value) + first;
      float* const __restrict mean = data_of(tensor.first) + first;
      float* const __restrict square = data_of(tensor.second) + first;
      const float* const __restrict gradient = data_of(tensor.gradient) + first;
      for (std::int64_t i = 0; i < count; ++i) {
        const float g = scale * gradient[i] + pull * value[i];
        mean[i] = beta1 * mean[i] + rest1 * g;
        square[i] = beta2 * square[i] + rest2 * g * g;
        value[i] = kept * value[i] - step_size * mean[i] / (std::sqrt(square[i]) * root_scale + eps);
      }
    });
    if (sums != nullptr) *sums++ = sum;
  }
}

}  // namespace kolo::models
