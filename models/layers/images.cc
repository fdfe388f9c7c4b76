#include "models/layers/images.h"

#include <fmt/format.h>

#include <utility>

#include "models/util/error.h"

namespace kolo::models {
namespace {

/// What a stage of images keeps.
struct StageKept : Kept {
  Buffer output, choices;
  Tensor x, chosen;

  std::size_t bytes() const override { return bytes_of({&output, &choices}); }
};

struct NormedKept final : StageKept {
  Buffer sums, squares, own, mean, inverse, products, factors, outputs;
  BatchStatistics statistics;
  Tensor scale, shift, slope, offset, convolved;  // of the stage

  std::size_t bytes() const override {
    return StageKept::bytes() + bytes_of({&sums, &squares, &own, &mean, &inverse, &products, &factors, &outputs});
  }
};

struct MaxPoolKept final : Kept {
  Buffer output, choices;
  Tensor chosen;
  Shape of;

  std::size_t bytes() const override { return bytes_of({&output, &choices}); }
};

void check(const Pooling& how) {
  const auto& [window, stride, padding] = how;
  if (window >= 1 && window <= 255 && stride >= 0 && padding >= 0 && 2 * padding <= window) return;
  throw ModelError(
      fmt::format("pooling cannot have a window of {}, a stride of {} and a padding of {}; windows are 1 to "
                  "255, and the padding at most half of one",
                  window, stride, padding));
}

ImageStage checked(const Conv2dOptions& options) {
  check(options.pooling);
  if (options.kernel < 1 || options.stride < 1 || options.padding < 0) {
    throw ModelError(
        fmt::format("a convolution cannot have filters of {0} x {0}, a stride of {1} and a padding of {2}; "
                    "give it positive ones",
                    options.kernel, options.stride, options.padding));
  }
  return {.convolution = {.stride = options.stride, .padding = options.padding},
          .activation = options.activation,
          .pooling = options.pooling};
}

/// Extents of a pooling's output. Errors: ModelError if no window fits.
Shape pooled(const Pooling& how, const Shape& of) {
  const auto extent = [&](std::int64_t size) { return extent_behind(size, how.window, how.step(), how.padding); };
  const Shape shape{of[0], of[1], extent(of[2]), extent(of[3])};
  if (shape[2] > 0 && shape[3] > 0) return shape;
  throw ModelError(
      fmt::format("a pooling window of {0} x {0} does not fit into an image of {1} x {2}; choose a smaller "
                  "one",
                  how.window, of[2], of[3]));
}

/// Extents of a stage's output. Errors: ModelError if a filter, or a window, does not fit.
Shape output_of(const ImageStage& how, const Shape& filters, const Shape& images) {
  const auto extent = [&](std::int64_t size) {
    return extent_behind(size, filters[2], how.convolution.stride, how.convolution.padding);
  };
  const Shape convolved{images[0], filters[0], extent(images[2]), extent(images[3])};
  if (convolved[2] > 0 && convolved[3] > 0) return pooled(how.pooling, convolved);
  throw ModelError(fmt::format("a filter of {0} x {0} does not fit into an image of {1} x {2}; choose a smaller one",
                               filters[2], images[2], images[3]));
}

/// Runs a stage, whose tensors are known, on kept.x.
Flow run(const ImageStage& stage, StageKept& kept, const Context& context) {
  const Shape shape = output_of(stage, stage.filters.shape, kept.x.shape);
  const Tensor y = context.output(kept.output, shape, "the output of a stage of images");
  kept.chosen = kept.choices.make(context.compute, DType::u16, context.compute.choices(stage, kept.x.shape),
                                  "the choices of a pooling");
  context.compute.convolve(stage, kept.x, y, kept.chosen);
  return {.x = y};
}

/// Returns the gradient of the input.
Flow run_backward(const ImageStage& stage, const Tensor& d, const StageKept& kept, const Context& context,
                  std::size_t weight, const Tensor& dbias) {
  Tensor dx;
  if (context.input_gradient) dx = context.gradient(d, kept.x.shape);
  context.compute.convolve_backward(stage, kept.x, kept.chosen, d, context.pass.add,
                                    reshaped(context.store.gradients(weight, 1), stage.filters.shape), dbias, dx);
  return {.x = dx};
}

}  // namespace

Conv2d::Conv2d(ParameterList& parameters, std::string_view name, std::int64_t channels, std::int64_t filters,
               const Conv2dOptions& options)
    : filters_{filters, channels, options.kernel, options.kernel}, how_(checked(options)) {
  const Initial initial = Initial::uniform(channels * options.kernel * options.kernel);
  weight_ = parameters.add(fmt::format("{}.weight", name), filters_, initial, true);
  if (options.bias) bias_ = parameters.add(fmt::format("{}.bias", name), {filters}, initial, false);
}

std::unique_ptr<Kept> Conv2d::make_kept() const {
  return std::make_unique<StageKept>();
}

Flow Conv2d::forward(const Flow& in, Kept& kept, const Context& context) {
  auto& own = static_cast<StageKept&>(kept);
  own.x = in.x;
  const Values weight(context, weight_, filters_);
  std::optional<Values> bias;
  if (bias_) bias.emplace(context, *bias_, Shape{filters_[0]});
  ImageStage stage = how_;
  stage.filters = weight;
  if (bias) stage.bias = *bias;
  return run(stage, own, context);
}

Flow Conv2d::backward(const Flow& d, Kept& kept, const Context& context) {
  const Values weight(context, weight_, filters_);
  ImageStage stage = how_;
  stage.filters = weight;
  const Flow of_input = run_backward(stage, d.x, static_cast<StageKept&>(kept), context, weight_,
                                     bias_ ? context.store.gradients(*bias_, 1) : Tensor{});
  if (bias_) context.finish(*bias_);
  context.finish(weight_);
  return of_input;
}

void Conv2d::backward_order(std::vector<std::size_t>& order) const {
  if (bias_) order.push_back(*bias_);
  order.push_back(weight_);
}

NormedConv2d::NormedConv2d(ParameterList& parameters, std::string_view name, std::string_view norm,
                           std::int64_t channels, std::int64_t filters, const Conv2dOptions& options, ReduceFn reduce,
                           double eps)
    : filters_{filters, channels, options.kernel, options.kernel},
      how_(checked(options)),
      reduce_(std::move(reduce)),
      eps_(eps) {
  weight_ = parameters.add(fmt::format("{}.weight", name), filters_,
                           Initial::uniform(channels * options.kernel * options.kernel), true);
  const auto named = [&](std::string_view which) { return fmt::format("{}.{}", norm, which); };
  gain_ = parameters.add(named("weight"), {filters}, Initial::constant(1), false);
  bias_ = parameters.add(named("bias"), {filters}, Initial::constant(0), false);
  mean_ = parameters.add_buffer(named("running_mean"), {filters}, 0);
  variance_ = parameters.add_buffer(named("running_var"), {filters}, 1);
}

std::unique_ptr<Kept> NormedConv2d::make_kept() const {
  return std::make_unique<NormedKept>();
}

void NormedConv2d::sum_over_ranks(const Tensor& numbers) const {
  if (reduce_) reduce_(numbers);
}

/// The stage with the filters' values.
ImageStage NormedConv2d::stage_of(const Tensor& filters) const {
  ImageStage stage = how_;
  stage.filters = filters;
  return stage;
}

/// The norm of the convolution of x, into `kept`.
void NormedConv2d::norm(const Tensor& x, Kept& kept, const Context& context) const {
  auto& own = static_cast<NormedKept&>(kept);
  Compute& compute = context.compute;
  const std::int64_t count = filters_[0];
  const auto numbers = [&](Buffer& buffer, DType dtype, std::int64_t elements) {
    return buffer.make(compute, dtype, {elements}, "a norm's statistics");
  };
  own.statistics = {.sums = numbers(own.sums, DType::f64, count + 1),
                    .squares = numbers(own.squares, DType::f64, count),
                    .own = numbers(own.own, DType::f64, 2 * count + 1),
                    .mean = numbers(own.mean, DType::f32, count),
                    .inverse = numbers(own.inverse, DType::f64, count),
                    .products = numbers(own.products, DType::f64, 2 * count)};
  const Tensor factors = numbers(own.factors, DType::f32, 4 * count);
  const auto factor = [&](std::int64_t i) { return part_of(factors, i * count, channels()); };
  own.scale = factor(0);
  own.shift = factor(1);
  own.slope = factor(2);
  own.offset = factor(3);
  own.convolved = {};
  if (context.training) {
    const Values weight(context, weight_, filters_);
    ImageStage stage = stage_of(weight);
    const Shape convolved = compute.convolved(stage, x.shape);
    if (convolved.elements() > 0)
      own.convolved = own.outputs.make(compute, context.kept(), convolved, "what is convolved");
    stage.convolved = own.convolved;
    compute.batch_sums(stage, x, own.statistics);
    sum_over_ranks(own.statistics.sums);
    compute.batch_squares(own.statistics);
    sum_over_ranks(own.statistics.squares);
  }
  const Values gain(context, gain_, channels()), bias(context, bias_, channels());
  const Values mean(context, mean_, channels()), variance(context, variance_, channels());
  compute.batch_fold(context.training, eps_, own.statistics,
                     {.gain = gain, .bias = bias, .running_mean = mean, .running_variance = variance}, own.scale,
                     own.shift);
}

Flow NormedConv2d::forward(const Flow& in, Kept& kept, const Context& context) {
  auto& own = static_cast<NormedKept&>(kept);
  own.x = in.x;
  norm(in.x, kept, context);
  const Values weight(context, weight_, filters_);
  ImageStage stage = stage_of(weight);
  stage.convolved = own.convolved;
  stage.scale = own.scale;
  stage.shift = own.shift;
  return run(stage, own, context);
}

Flow NormedConv2d::backward(const Flow& d, Kept& kept, const Context& context) {
  auto& own = static_cast<NormedKept&>(kept);
  Compute& compute = context.compute;
  const Values weight(context, weight_, filters_);
  ImageStage stage = stage_of(weight);
  stage.convolved = own.convolved;
  compute.batch_products(stage, own.x, own.chosen, d.x, own.statistics, context.pass.add,
                         context.store.gradients(gain_, 1), context.store.gradients(bias_, 1));
  sum_over_ranks(own.statistics.products);
  compute.batch_fold_backward(own.statistics, Values(context, gain_, channels()), own.slope, own.offset);
  context.finish(bias_);
  context.finish(gain_);
  stage.scale = own.scale;
  stage.slope = own.slope;
  stage.offset = own.offset;
  const Flow of_input = run_backward(stage, d.x, own, context, weight_, {});
  context.finish(weight_);
  return of_input;
}

void NormedConv2d::forward_absent(Kept& kept, const Context& context) {
  if (context.training) norm({.shape = {0, filters_[1], 1, 1}}, kept, context);
}

void NormedConv2d::backward_absent(Kept& kept, const Context& context) {
  const Tensor& products = static_cast<NormedKept&>(kept).statistics.products;
  context.compute.fill(products, 0);
  sum_over_ranks(products);
}

void NormedConv2d::backward_order(std::vector<std::size_t>& order) const {
  order.insert(order.end(), {bias_, gain_, weight_});
}

MaxPool::MaxPool(ParameterList&, const Pooling& how) : how_{.pooling = how} {
  check(how);
}

std::unique_ptr<Kept> MaxPool::make_kept() const {
  return std::make_unique<MaxPoolKept>();
}

Flow MaxPool::forward(const Flow& in, Kept& kept, const Context& context) {
  auto& own = static_cast<MaxPoolKept&>(kept);
  own.of = in.x.shape;
  const Tensor y = context.output(own.output, pooled(how_.pooling, own.of), "the output of a pooling");
  own.chosen =
      own.choices.make(context.compute, DType::u16, context.compute.choices(how_, own.of), "the choices of a pooling");
  context.compute.pool(how_.pooling, in.x, y, own.chosen);
  return {.x = y};
}

Flow MaxPool::backward(const Flow& d, Kept& kept, const Context& context) {
  const auto& own = static_cast<MaxPoolKept&>(kept);
  const Tensor dx = context.gradient(d.x, own.of);
  context.compute.pool_backward(how_.pooling, own.chosen, d.x, dx);
  return {.x = dx};
}

}  // namespace kolo::models
