#pragma once

#include <cstdint>
#include <vector>

#include <kolo/reduce_fn.h>

namespace kolo::models {

/// The extents of a convolution's outputs: [examples, filters / block, places, block].
struct FilterOutputs {
  std::int64_t examples = 0;
  std::int64_t filters = 0;
  std::int64_t places = 0;
  std::int64_t block = 0;
};

/// Batch normalisation (Ioffe & Szegedy 2015, arXiv:1502.03167) of each filter over all examples and places of all
/// ranks, with a gain and a bias. It is folded into x · scale() + shift(), one number each per filter.
class BatchNorm {
 public:
  /// reduce  sums over the ranks, collectively; empty: there is one rank
  BatchNorm(std::int64_t filters, double eps, ReduceFn reduce);

  /// Takes mean and variance of a batch, in two sums over the ranks; moves the running ones a tenth of the way to them
  /// (the variance as that of a sample, as PyTorch does).
  void measure(const FilterOutputs& outputs, const float* x, float* running_mean, float* running_variance);

  /// Takes the running mean and variance.
  void adopt(const float* running_mean, const float* running_variance);

  /// After measure() or adopt().
  void fold(const float* gain, const float* bias);
  const float* scale() const { return scale_.data(); }
  const float* shift() const { return shift_.data(); }

  /// After measure() and fold(): d, the gradient of the result, becomes that of x. d_gain and d_bias are those of this
  /// rank's examples.
  void backward(const FilterOutputs& outputs, const float* x, const float* gain, float* d, bool add, float* d_gain,
                float* d_bias);

 private:
  void sum_over_ranks(std::vector<double>& numbers);

  double eps_;
  ReduceFn reduce_;
  double count_ = 0;  // numbers of each filter, over all ranks
  std::vector<float> mean_, scale_, shift_;
  std::vector<double> inverse_deviation_;
};

}  // namespace kolo::models
