#include "models/layers/batch_norm.h"

#include <algorithm>
#include <cmath>

#include <kolo/tensor.h>

#include "models/compute/kernels.h"

namespace kolo::models {
namespace {

/// Calls body(first filter, offset of the block's numbers) for each block of each example.
template <class Body>
void for_blocks(const FilterOutputs& outputs, Body body) {
  std::int64_t at = 0;
  for (std::int64_t example = 0; example < outputs.examples; ++example) {
    for (std::int64_t filter = 0; filter < outputs.filters; filter += outputs.block) {
      body(filter, at);
      at += outputs.places * outputs.block;
    }
  }
}

const Kernels& loops() {
  return kernels(Precision::f32);
}

}  // namespace

BatchNorm::BatchNorm(std::int64_t filters, double eps, ReduceFn reduce) : eps_(eps), reduce_(std::move(reduce)) {
  const auto count = static_cast<std::size_t>(filters);
  for (std::vector<float>* const numbers : {&mean_, &scale_, &shift_}) numbers->resize(count);
  inverse_deviation_.resize(count);
}

void BatchNorm::sum_over_ranks(std::vector<double>& numbers) {
  if (reduce_) reduce_(view(numbers));
}

// Two passes: the sum of squared differences to the mean is free of cancellation.
void BatchNorm::measure(const FilterOutputs& outputs, const float* x, float* running_mean, float* running_variance) {
  const std::size_t filters = mean_.size();
  std::vector<double> sums(filters + 1), squares(filters), ignored(filters);
  for_blocks(outputs, [&](std::int64_t filter, std::int64_t at) {
    loops().column_sums(outputs.places, outputs.block, x + at, nullptr, sums.data() + filter, ignored.data() + filter);
  });
  sums[filters] = static_cast<double>(outputs.examples * outputs.places);
  sum_over_ranks(sums);
  count_ = std::max(sums[filters], 1.0);
  for (std::size_t i = 0; i < filters; ++i) mean_[i] = static_cast<float>(sums[i] / count_);
  for_blocks(outputs, [&](std::int64_t filter, std::int64_t at) {
    loops().column_sums(outputs.places, outputs.block, x + at, mean_.data() + filter, ignored.data() + filter,
                        squares.data() + filter);
  });
  sum_over_ranks(squares);
  constexpr float step = 0.1f;
  for (std::size_t i = 0; i < filters; ++i) {
    inverse_deviation_[i] = 1 / std::sqrt(squares[i] / count_ + eps_);
    const auto of_sample = static_cast<float>(squares[i] / std::max(count_ - 1, 1.0));
    running_mean[i] += step * (mean_[i] - running_mean[i]);
    running_variance[i] += step * (of_sample - running_variance[i]);
  }
}

void BatchNorm::adopt(const float* running_mean, const float* running_variance) {
  for (std::size_t i = 0; i < mean_.size(); ++i) {
    mean_[i] = running_mean[i];
    inverse_deviation_[i] = 1 / std::sqrt(static_cast<double>(running_variance[i]) + eps_);
  }
}

void BatchNorm::fold(const float* gain, const float* bias) {
  for (std::size_t i = 0; i < mean_.size(); ++i) {
    const double scale = gain[i] * inverse_deviation_[i];
    scale_[i] = static_cast<float>(scale);
    shift_[i] = static_cast<float>(bias[i] - mean_[i] * scale);
  }
}

// With r = 1/deviation, n numbers of all ranks and x' = x - mean: dx = gain·r·(d - Σd/n - x'·r²·Σ(d·x')/n).
void BatchNorm::backward(const FilterOutputs& outputs, const float* x, const float* gain, float* d, bool add,
                         float* d_gain, float* d_bias) {
  const std::size_t filters = mean_.size();
  std::vector<double> sums(2 * filters);
  for_blocks(outputs, [&](std::int64_t filter, std::int64_t at) {
    loops().column_products(outputs.places, outputs.block, d + at, x + at, mean_.data() + filter, sums.data() + filter,
                            sums.data() + filters + static_cast<std::size_t>(filter));
  });
  for (std::size_t i = 0; i < filters; ++i) {
    d_bias[i] = static_cast<float>(sums[i]) + (add ? d_bias[i] : 0.0f);
    d_gain[i] = static_cast<float>(sums[filters + i] * inverse_deviation_[i]) + (add ? d_gain[i] : 0.0f);
  }
  sum_over_ranks(sums);
  std::vector<float> of_x(filters), constant(filters);
  for (std::size_t i = 0; i < filters; ++i) {
    const double r = inverse_deviation_[i], slope = gain[i] * r * r * r * sums[filters + i] / count_;
    of_x[i] = static_cast<float>(-slope);
    constant[i] = static_cast<float>(mean_[i] * slope - gain[i] * r * sums[i] / count_);
  }
  for_blocks(outputs, [&](std::int64_t filter, std::int64_t at) {
    loops().combine_columns(outputs.places, outputs.block, scale_.data() + filter, x + at, of_x.data() + filter,
                            constant.data() + filter, d + at);
  });
}

}  // namespace kolo::models
