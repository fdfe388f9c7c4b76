#pragma once

#include <cstdint>
#include <string_view>

#include <kolo/reduce_fn.h>

#include "models/layers/layer.h"

namespace kolo::models {

/// Options of a Conv2d.
struct Conv2dOptions {
  std::int64_t kernel = 3;
  std::int64_t stride = 1;
  std::int64_t padding = 0;
  Activation activation = Activation::none;
};

/// Convolution of images [examples, channels, rows, columns] with square filters. Parameters: NAME.weight
/// [filters, channels, kernel, kernel], NAME.bias [filters].
class Conv2d final : public Layer {
 public:
  Conv2d(ParameterList& parameters, std::string_view name, std::int64_t channels, std::int64_t filters,
         const Conv2dOptions& options = {});

  std::unique_ptr<Kept> make_kept() const override;
  Flow forward(const Flow& in, Kept& kept, const Context& context) override;
  Flow backward(const Flow& d, Kept& kept, const Context& context) override;
  void backward_order(std::vector<std::size_t>& order) const override;
  bool gives_blocks() const override { return true; }
  bool keeps_gradient() const override { return true; }

 private:
  Tensor weights(const Context& context) const;

  Shape filters_;
  Convolution how_;
  Activation activation_;
  std::size_t weight_, bias_;
};

/// Batch normalisation (Ioffe & Szegedy 2015, arXiv:1502.03167) of each channel over all examples and places of all
/// ranks. Parameters: NAME.weight and NAME.bias, and NAME.running_mean and NAME.running_var, which training moves by a
/// tenth towards each batch's and evaluation uses; as parameters whose gradient is 0 they are broadcast, saved and
/// loaded like the others. All are [channels].
class BatchNorm final : public Layer {
 public:
  /// reduce  sums over the ranks, collectively, twice forward and once back, also on ranks without examples; empty:
  /// there
  ///         is one rank
  BatchNorm(ParameterList& parameters, std::string_view name, std::int64_t channels, ReduceFn reduce = {},
            Activation activation = Activation::none, double eps = 1e-5);

  std::unique_ptr<Kept> make_kept() const override;
  Flow forward(const Flow& in, Kept& kept, const Context& context) override;
  Flow backward(const Flow& d, Kept& kept, const Context& context) override;
  void backward_order(std::vector<std::size_t>& order) const override;
  void forward_absent(Kept& kept, const Context& context) override;
  void backward_absent(Kept& kept, const Context& context) override;
  bool gives_blocks() const override { return true; }
  bool takes_blocks() const override { return true; }

 private:
  void sum_over_ranks(const Tensor& numbers) const;
  Shape channels() const { return {channels_}; }

  std::int64_t channels_;
  ReduceFn reduce_;
  Activation activation_;
  double eps_;
  std::size_t gain_, bias_, mean_, variance_;
};

/// The largest pixel of each window of 2×2, after the norm and the activation of the layers before; a last odd row or
/// column is dropped. A window of 1 only turns blocks of channels into planes: Sequential inserts it where it is
/// needed.
class MaxPool final : public Layer {
 public:
  explicit MaxPool(ParameterList&, std::int64_t window = 2) : window_(window) {}

  std::unique_ptr<Kept> make_kept() const override;
  Flow forward(const Flow& in, Kept& kept, const Context& context) override;
  Flow backward(const Flow& d, Kept& kept, const Context& context) override;
  void backward_order(std::vector<std::size_t>&) const override {}
  bool takes_blocks() const override { return true; }
  bool keeps_gradient() const override { return true; }

 private:
  std::int64_t window_;
};

}  // namespace kolo::models
