#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include <kolo/reduce_fn.h>

#include "models/layers/layer.h"

namespace kolo::models {

/// Options of a Conv2d.
struct Conv2dOptions {
  std::int64_t kernel = 3;
  std::int64_t stride = 1;
  std::int64_t padding = 0;
  bool bias = true;
  Activation activation = Activation::none;
  Pooling pooling{};  ///< after the activation, while an image is in the cache: a MaxPool that costs little
};

/// Convolution of images [examples, channels, rows, columns] with square filters, in f32 whatever the precision of
/// products. Parameters: NAME.weight [filters, channels, kernel, kernel], NAME.bias [filters].
///
/// Errors of these layers: ModelError for options that make no layer, and in a pass for images that are too small.
class Conv2d final : public Layer {
 public:
  Conv2d(ParameterList& parameters, std::string_view name, std::int64_t channels, std::int64_t filters,
         const Conv2dOptions& options = {});

  std::unique_ptr<Kept> make_kept() const override;
  Flow forward(const Flow& in, Kept& kept, const Context& context) override;
  Flow backward(const Flow& d, Kept& kept, const Context& context) override;
  void backward_order(std::vector<std::size_t>& order) const override;
  bool takes_kept() const override { return true; }
  bool keeps_gradient() const override { return true; }

 private:
  Shape filters_;
  ImageStage how_;  // without tensors
  std::size_t weight_;
  std::optional<std::size_t> bias_;
};

/// A convolution without a bias, and behind it batch normalisation (Ioffe & Szegedy 2015, arXiv:1502.03167) of each
/// filter over all examples and places of all ranks; then activation and pooling. Parameters: NAME.weight as those of a
/// Conv2d, NORM.weight and NORM.bias; buffers: NORM.running_mean and NORM.running_var, which training moves by a tenth
/// towards each batch's and evaluation uses. Those of the norm are [filters].
class NormedConv2d final : public Layer {
 public:
  /// options  `bias` does not count: the norm would take any away
  /// reduce   sums over the ranks, collectively, twice forward and once back, also on ranks without examples; empty:
  ///          there is one rank
  NormedConv2d(ParameterList& parameters, std::string_view name, std::string_view norm, std::int64_t channels,
               std::int64_t filters, const Conv2dOptions& options = {}, ReduceFn reduce = {}, double eps = 1e-5);

  std::unique_ptr<Kept> make_kept() const override;
  Flow forward(const Flow& in, Kept& kept, const Context& context) override;
  Flow backward(const Flow& d, Kept& kept, const Context& context) override;
  void backward_order(std::vector<std::size_t>& order) const override;
  void forward_absent(Kept& kept, const Context& context) override;
  void backward_absent(Kept& kept, const Context& context) override;
  bool takes_kept() const override { return true; }
  bool keeps_gradient() const override { return true; }

 private:
  void sum_over_ranks(const Tensor& numbers) const;
  ImageStage stage_of(const Tensor& filters) const;
  void norm(const Tensor& x, Kept& kept, const Context& context) const;
  Shape channels() const { return {filters_[0]}; }

  Shape filters_;
  ImageStage how_;  // without tensors
  ReduceFn reduce_;
  double eps_;
  std::size_t weight_, gain_, bias_, mean_, variance_;
};

/// The largest pixel of each window of images [examples, channels, rows, columns]; of equal ones the first gets the
/// gradient. Rows and columns that fill no window are dropped.
class MaxPool final : public Layer {
 public:
  explicit MaxPool(ParameterList&, const Pooling& how = {.window = 2});

  std::unique_ptr<Kept> make_kept() const override;
  Flow forward(const Flow& in, Kept& kept, const Context& context) override;
  Flow backward(const Flow& d, Kept& kept, const Context& context) override;
  void backward_order(std::vector<std::size_t>&) const override {}
  bool takes_kept() const override { return true; }
  bool keeps_gradient() const override { return true; }

 private:
  ImageStage how_;
};

}  // namespace kolo::models
