#include "models/layers/images.h"

#include <fmt/format.h>

#include <algorithm>

#include "models/util/error.h"

namespace kolo::models {
namespace {

struct Conv2dKept final : Kept {
  Buffer input, output;
  Tensor x;

  std::size_t bytes() const override { return bytes_of({&input, &output}); }
};

struct BatchNormKept final : Kept {
  Buffer sums, squares, mean, inverse, products, factors;
  BatchStatistics statistics;
  Tensor x, scale;

  std::size_t bytes() const override { return bytes_of({&sums, &squares, &mean, &inverse, &products, &factors}); }
};

struct MaxPoolKept final : Kept {
  Buffer output;
  Flow in;

  std::size_t bytes() const override { return output.bytes(); }
};

/// x rounded to the dtype of products and widened again: convolutions are f32.
Tensor rounded_and_widened(const Tensor& x, const Context& context, Buffer& memory) {
  if (context.items == DType::f32) return x;
  const Tensor narrow = context.rounded(x, context.workspace.items, "rounded numbers");
  const Tensor wide = memory.make(context.compute, DType::f32, x.shape, "rounded numbers");
  context.compute.cast(narrow, wide);
  return wide;
}

}  // namespace

Conv2d::Conv2d(ParameterList& parameters, std::string_view name, std::int64_t channels, std::int64_t filters,
               const Conv2dOptions& options)
    : filters_{filters, channels, options.kernel, options.kernel},
      how_{.stride = options.stride, .padding = options.padding},
      activation_(options.activation) {
  const Initial initial = Initial::uniform(channels * options.kernel * options.kernel);
  weight_ = parameters.add(fmt::format("{}.weight", name), filters_, initial, true);
  bias_ = parameters.add(fmt::format("{}.bias", name), {filters}, initial, false);
}

std::unique_ptr<Kept> Conv2d::make_kept() const {
  return std::make_unique<Conv2dKept>();
}

Flow Conv2d::forward(const Flow& in, Kept& kept, const Context& context) {
  auto& own = static_cast<Conv2dKept&>(kept);
  own.x = rounded_and_widened(in.x, context, own.input);
  const Values weight(context, weight_, filters_), bias(context, bias_, {filters_[0]});
  const Shape shape = context.compute.convolved(how_, own.x.shape, filters_);
  if (shape[2] < 1 || shape[3] < 1) {
    throw ModelError(fmt::format("a filter of {0} x {0} does not fit into an image of {1} x {2}; choose a smaller one",
                                 filters_[2], own.x.shape[2], own.x.shape[3]));
  }
  const Tensor y = own.output.make(context.compute, DType::f32, shape, "the convolution's output");
  context.compute.convolve(how_, own.x, rounded_and_widened(weight, context, context.workspace.filters), bias, y);
  return {.x = y, .activation = activation_};
}

Flow Conv2d::backward(const Flow& d, Kept& kept, const Context& context) {
  auto& own = static_cast<Conv2dKept&>(kept);
  const Tensor dy = rounded_and_widened(d.x, context, context.workspace.wide);
  const Values values(context, weight_, filters_);
  Tensor dx, weight = values;
  if (context.input_gradient) {
    weight = rounded_and_widened(values, context, context.workspace.filters);
    dx = context.workspace.beside(context.compute, d.x, own.x.shape);
  }
  context.compute.convolve_backward(how_, own.x, weight, dy, context.pass.add,
                                    reshaped(context.store.gradients(weight_, 1), filters_),
                                    context.store.gradients(bias_, 1), dx);
  context.finish(bias_);
  context.finish(weight_);
  return {.x = dx};
}

void Conv2d::backward_order(std::vector<std::size_t>& order) const {
  order.insert(order.end(), {bias_, weight_});
}

BatchNorm::BatchNorm(ParameterList& parameters, std::string_view name, std::int64_t channels, ReduceFn reduce,
                     Activation activation, double eps)
    : channels_(channels), reduce_(std::move(reduce)), activation_(activation), eps_(eps) {
  const auto add = [&](std::string_view which, double value) {
    return parameters.add(fmt::format("{}.{}", name, which), {channels}, Initial::constant(value), false);
  };
  gain_ = add("weight", 1);
  bias_ = add("bias", 0);
  mean_ = add("running_mean", 0);
  variance_ = add("running_var", 1);
}

std::unique_ptr<Kept> BatchNorm::make_kept() const {
  return std::make_unique<BatchNormKept>();
}

void BatchNorm::sum_over_ranks(const Tensor& numbers) const {
  if (reduce_) reduce_(numbers);
}

Flow BatchNorm::forward(const Flow& in, Kept& kept, const Context& context) {
  auto& own = static_cast<BatchNormKept&>(kept);
  Compute& compute = context.compute;
  const auto numbers = [&](Buffer& buffer, DType dtype, std::int64_t count) {
    return buffer.make(compute, dtype, {count}, "a norm's statistics");
  };
  own.x = in.x;
  own.statistics = {.sums = numbers(own.sums, DType::f64, channels_ + 1),
                    .squares = numbers(own.squares, DType::f64, channels_),
                    .mean = numbers(own.mean, DType::f32, channels_),
                    .inverse = numbers(own.inverse, DType::f64, channels_),
                    .products = numbers(own.products, DType::f64, 2 * channels_)};
  const Tensor factors = numbers(own.factors, DType::f32, 2 * channels_);
  own.scale = reshaped(factors, channels());
  Tensor shift = own.scale;
  shift.data = static_cast<float*>(factors.data) + channels_;
  if (context.training) {
    compute.batch_sums(in.x, own.statistics);
    sum_over_ranks(own.statistics.sums);
    compute.batch_squares(in.x, own.statistics);
    sum_over_ranks(own.statistics.squares);
  }
  const Values gain(context, gain_, channels()), bias(context, bias_, channels());
  const Values mean(context, mean_, channels()), variance(context, variance_, channels());
  compute.batch_fold(context.training, eps_, own.statistics,
                     {.gain = gain, .bias = bias, .running_mean = mean, .running_variance = variance}, own.scale,
                     shift);
  return {.x = in.x, .scale = own.scale, .shift = shift, .activation = activation_};
}

Flow BatchNorm::backward(const Flow& d, Kept& kept, const Context& context) {
  auto& own = static_cast<BatchNormKept&>(kept);
  Compute& compute = context.compute;
  compute.batch_products(own.x, d.x, own.statistics, context.pass.add, context.store.gradients(gain_, 1),
                         context.store.gradients(bias_, 1));
  sum_over_ranks(own.statistics.products);
  compute.batch_backward(own.x, own.statistics, Values(context, gain_, channels()), own.scale, d.x);
  for (const std::size_t index : {variance_, mean_}) {
    if (!context.pass.add) compute.fill(context.store.gradients(index, 1), 0);
    context.finish(index);
  }
  context.finish(bias_);
  context.finish(gain_);
  return {.x = d.x};
}

void BatchNorm::forward_absent(Kept& kept, const Context& context) {
  if (context.training) forward({.x = {.shape = {0, 1, 1, 1, channels_}}}, kept, context);
}

void BatchNorm::backward_absent(Kept& kept, const Context& context) {
  auto& own = static_cast<BatchNormKept&>(kept);
  context.compute.batch_products(own.x, own.x, own.statistics, false, {}, {});
  sum_over_ranks(own.statistics.products);
}

void BatchNorm::backward_order(std::vector<std::size_t>& order) const {
  order.insert(order.end(), {variance_, mean_, bias_, gain_});
}

std::unique_ptr<Kept> MaxPool::make_kept() const {
  return std::make_unique<MaxPoolKept>();
}

Flow MaxPool::forward(const Flow& in, Kept& kept, const Context& context) {
  auto& own = static_cast<MaxPoolKept&>(kept);
  own.in = in;
  const Shape& of = in.x.shape;
  const Tensor pooled = own.output.make(
      context.compute, DType::f32, {of[0], of[1] * of[4], of[2] / window_, of[3] / window_}, "the pooling's output");
  context.compute.pool(window_, in.activation, in.x, in.scale, in.shift, pooled);
  return {.x = pooled};
}

/// In place, unless there is a norm, which needs its input.
Flow MaxPool::backward(const Flow& d, Kept& kept, const Context& context) {
  const Flow& in = static_cast<MaxPoolKept&>(kept).in;
  const Shape& of = in.x.shape;
  const Tensor of_planes = reshaped(d.x, {of[0], of[1] * of[4], of[2] / window_, of[3] / window_});
  const Tensor of_blocks = in.scale.data == nullptr ? in.x
                                                    : context.workspace.d_images.make(context.compute, DType::f32, of,
                                                                                      "gradients of images");
  context.compute.pool_backward(window_, in.activation, in.x, in.scale, in.shift, of_planes, of_blocks);
  return {.x = of_blocks};
}

}  // namespace kolo::models
