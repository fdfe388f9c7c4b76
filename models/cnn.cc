#include "models/cnn.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "models/compute/product.h"
#include "models/compute/random.h"
#include "models/util/error.h"

namespace kolo::models {
namespace {

void check_sizes(const CnnSettings& settings) {
  constexpr std::int64_t largest = 1 << 16;  // keeps every product of three far from overflow
  struct Size {
    const char* name;
    std::int64_t value, least;
  };
  for (const auto& [name, size, least] : {Size{"channels", settings.channels, 1},
                                          {"rows", settings.height, 4},
                                          {"columns", settings.width, 4},
                                          {"filters", settings.filters, 1},
                                          {"hidden units", settings.dense, 1},
                                          {"classes", settings.classes, 1}}) {
    if (size >= least && size <= largest) continue;
    throw ModelError(fmt::format("a CNN cannot have {} {} ({} to {}); say --channels 1 --filters 32 --dense 64", size,
                                 name, least, largest));
  }
}

/// Indices of the parameters: those of the norm, if there is one, lie between the convolution's and the others.
enum Index : std::size_t { weight = 0, bias = 1, gain = 2, offset = 3, running_mean = 4, running_variance = 5 };

}  // namespace

Cnn::Cnn(const CnnSettings& settings, Precision precision, ReduceFn reduce)
    : settings_((check_sizes(settings), settings)), precision_(precision), block_(filter_block(convolution(1))) {
  const auto add = [&](const char* name, const Shape& shape) { parameters_.push_back({name, shape, {}, {}}); };
  const std::int64_t filters = settings.filters;
  add("conv1.weight", {filters, settings.channels, 3, 3});
  add("conv1.bias", {filters});
  if (settings.batch_norm) {
    for (const char* const name : {"bn1.weight", "bn1.bias", "bn1.running_mean", "bn1.running_var"})
      add(name, {filters});
    norm_.emplace(filters, 1e-5, std::move(reduce));
  }
  hidden_ = {.inputs = filters * pooled_places(), .outputs = settings.dense, .parameter = parameters_.size()};
  last_ = {.inputs = settings.dense, .outputs = settings.classes, .parameter = parameters_.size() + 2};
  add("dense1.weight", {hidden_.outputs, hidden_.inputs});
  add("dense1.bias", {hidden_.outputs});
  add("dense2.weight", {last_.outputs, last_.inputs});
  add("dense2.bias", {last_.outputs});
}

ConvolutionShape Cnn::convolution(std::int64_t examples) const {
  return {.examples = examples,
          .channels = settings_.channels,
          .height = settings_.height,
          .width = settings_.width,
          .filters = settings_.filters};
}

FilterOutputs Cnn::outputs(std::int64_t examples) const {
  return {.examples = examples, .filters = settings_.filters, .places = convolution(1).places(), .block = block_};
}

std::int64_t Cnn::pooled_places() const {
  const ConvolutionShape shape = convolution(1);
  return shape.rows() / 2 * (shape.columns() / 2);
}

void Cnn::bind(std::span<float> values, std::span<float> gradients) {
  bind_parameters(parameters_, values, gradients);
  bound_ = true;
}

void Cnn::initialise(std::uint64_t seed) {
  const auto inputs_of = [&](std::size_t index) {
    if (index < gain) return convolution(1).patch();
    return index < last_.parameter ? hidden_.inputs : last_.inputs;
  };
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const std::span<float> values = parameters_[i].value;
    if (norm_ && i >= gain && i <= running_variance) {
      std::ranges::fill(values, i == gain || i == running_variance ? 1.0f : 0.0f);
      continue;
    }
    Random random(seed, i);
    const auto bound = static_cast<float>(1 / std::sqrt(static_cast<double>(inputs_of(i))));
    for (float& value : values) value = random.symmetric(bound);
  }
}

void Cnn::check(const Batch& batch) const {
  if (!bound_) throw ModelError("the model has no storage; call bind() before the first pass");
  const std::int64_t inputs = settings_.channels * settings_.height * settings_.width;
  if (std::ssize(batch.inputs) == batch.examples * inputs && std::ssize(batch.targets) == batch.examples) return;
  throw ModelError(fmt::format("a batch of {} examples has {} inputs and {} targets (the model takes {} inputs each)",
                               batch.examples, batch.inputs.size(), batch.targets.size(), inputs));
}

/// `values` rounded to the precision and widened again: the library's convolutions are f32.
const float* Cnn::in_precision(std::int64_t count, const float* values, Buffer& into) {
  if (precision_ == Precision::f32) return values;
  const MatmulItem* const narrow = rounded(precision_, count, values, rounded_, "rounded numbers");
  float* const out = into.floats(count, "rounded numbers");
  kernels(precision_).widen(count, narrow, out);
  return out;
}

void Cnn::forward(const Batch& batch, bool training) {
  const ConvolutionShape shape = convolution(batch.examples);
  float* const convolved =
      convolved_.floats(batch.examples * shape.places() * shape.filters, "the convolution's output");
  if (batch.examples > 0) {
    convolve(shape, in_precision(std::ssize(batch.inputs), batch.inputs.data(), rounded_x_),
             in_precision(shape.filters * shape.patch(), value(weight), rounded_w_), value(bias), convolved);
  }
  if (norm_) {
    if (training) norm_->measure(outputs(batch.examples), convolved, value(running_mean), value(running_variance));
    if (!training) norm_->adopt(value(running_mean), value(running_variance));
    norm_->fold(value(gain), value(offset));
  }
  if (batch.examples == 0) return;
  pool(batch.examples);
  dense_forward(hidden_, batch.examples, pooled_.floats(), Activation::relu);
  dense_forward(last_, batch.examples, hidden_.output.floats(), Activation::none);
}

PoolView Cnn::pool_view(std::int64_t filter, const float* x) const {
  const ConvolutionShape shape = convolution(1);
  return {.rows = shape.rows(),
          .columns = shape.columns(),
          .block = block_,
          .x = x,
          .scale = norm_ ? norm_->scale() + filter : nullptr,
          .shift = norm_ ? norm_->shift() + filter : nullptr};
}

/// The hidden layer's inputs are in the order of filters: [examples, filters, places].
void Cnn::pool(std::int64_t examples) {
  const std::int64_t places = pooled_places(), slab = convolution(1).places() * block_;
  const float* convolved = convolved_.floats();
  float* out = pooled_.floats(examples * hidden_.inputs, "the pooling's output");
  float* const one = one_pooled_.floats(places * block_, "one image's pooling");
  for (std::int64_t example = 0; example < examples; ++example) {
    for (std::int64_t filter = 0; filter < settings_.filters; filter += block_, convolved += slab) {
      kernels(Precision::f32).relu_pool(pool_view(filter, convolved), one);
      for (std::int64_t i = 0; i < block_; ++i, out += places) {
        for (std::int64_t place = 0; place < places; ++place) out[place] = one[place * block_ + i];
      }
    }
  }
}

void Cnn::dense_forward(Dense& layer, std::int64_t examples, const float* in, Activation activation) {
  float* const out = layer.output.floats(examples * layer.outputs, "a layer's output");
  layer.input = rounded(precision_, examples * layer.inputs, in, layer.input_memory, "a layer's input");
  layer.weight =
      rounded(precision_, layer.inputs * layer.outputs, value(layer.parameter), layer.weight_memory, "weights");
  product_forward(precision_, examples, layer.inputs, layer.outputs, layer.input, layer.weight, out);
  add_bias(examples, layer.outputs, value(layer.parameter + 1), activation, out);
}

BatchResult Cnn::forward_backward(const Batch& batch, const GradReady& grad_ready, const Pass& pass) {
  check(batch);
  if (batch.examples == 0 && !norm_) {
    no_gradients(*this, grad_ready, pass);
    return {};
  }
  forward(batch, true);
  if (batch.examples == 0) {  // still takes part in the norm's sums
    float none = 0;
    std::vector<float> unused(2 * static_cast<std::size_t>(settings_.filters));
    norm_->backward(outputs(0), &none, value(gain), &none, false, unused.data(), unused.data() + settings_.filters);
    no_gradients(*this, grad_ready, pass);
    return {};
  }
  float* const delta = delta_.floats(batch.examples * last_.outputs, "gradients of logits");
  const BatchResult result =
      softmax_cross_entropy(batch.examples, last_.outputs, last_.output.floats(), batch.targets, delta, pass.scale);
  backward(batch, grad_ready, pass.add);
  return result;
}

// delta_ is the gradient of a layer's output, from the logits down to the pooling's.
void Cnn::backward(const Batch& batch, const GradReady& grad_ready, bool add) {
  const std::int64_t examples = batch.examples;
  const Gradient how = add ? Gradient::add : Gradient::overwrite;
  bias_gradient(examples, last_.outputs, delta_.floats(), gradient(last_.parameter + 1), how);
  grad_ready(last_.parameter + 1);
  dense_backward(last_, examples, add, grad_ready);
  relu_backward(examples, hidden_.outputs, hidden_.output.floats(), delta_.floats(), gradient(hidden_.parameter + 1),
                how);
  grad_ready(hidden_.parameter + 1);
  dense_backward(hidden_, examples, add, grad_ready);

  const ConvolutionShape shape = convolution(examples);
  const std::int64_t count = examples * shape.places() * shape.filters;
  float* const d = norm_ ? d_convolved_.floats(count, "gradients of the norm's output") : convolved_.floats();
  pool_backward(examples, d);
  if (norm_) norm_backward(examples, grad_ready, add, d);
  convolve_backward(shape, precision_ == Precision::f32 ? batch.inputs.data() : rounded_x_.floats(),
                    in_precision(count, d, rounded_d_), add, gradient(weight), gradient(bias));
  grad_ready(bias);
  grad_ready(weight);
}

/// The weight's gradient, announced at once; then delta_ becomes that of the layer's input.
void Cnn::dense_backward(const Dense& layer, std::int64_t examples, bool add, const GradReady& grad_ready) {
  const MatmulItem* const dy =
      rounded(precision_, examples * layer.outputs, delta_.floats(), delta_memory_, "gradients of a layer's output");
  product_weight(precision_, examples, layer.inputs, layer.outputs, dy, layer.input, add, gradient(layer.parameter));
  grad_ready(layer.parameter);
  float* const below = delta_below_.floats(examples * layer.inputs, "gradients of a layer's input");
  product_backward(precision_, examples, layer.inputs, layer.outputs, dy, layer.weight, below);
  std::swap(delta_, delta_below_);
}

void Cnn::pool_backward(std::int64_t examples, float* d) {
  const std::int64_t places = pooled_places(), slab = convolution(1).places() * block_;
  const float* convolved = convolved_.floats();
  const float* delta = delta_.floats();
  float* const one = one_pooled_.floats();
  for (std::int64_t example = 0; example < examples; ++example) {
    for (std::int64_t filter = 0; filter < settings_.filters; filter += block_, convolved += slab, d += slab) {
      for (std::int64_t i = 0; i < block_; ++i, delta += places) {
        for (std::int64_t place = 0; place < places; ++place) one[place * block_ + i] = delta[place];
      }
      kernels(Precision::f32).relu_pool_backward(pool_view(filter, convolved), one, d);
    }
  }
}

void Cnn::norm_backward(std::int64_t examples, const GradReady& grad_ready, bool add, float* d) {
  norm_->backward(outputs(examples), convolved_.floats(), value(gain), d, add, gradient(gain), gradient(offset));
  for (const std::size_t index : {running_variance, running_mean}) {
    if (!add) std::ranges::fill(parameters_[index].gradient, 0.0f);
    grad_ready(index);
  }
  grad_ready(offset);
  grad_ready(gain);
}

BatchResult Cnn::evaluate(const Batch& batch) {
  const std::span<const float> out = logits(batch);
  return softmax_cross_entropy(batch.examples, settings_.classes, out.data(), batch.targets, nullptr);
}

std::span<const float> Cnn::logits(const Batch& batch) {
  check(batch);
  if (batch.examples == 0) return {};
  forward(batch, false);
  return {last_.output.floats(), static_cast<std::size_t>(batch.examples * settings_.classes)};
}

std::size_t Cnn::activation_bytes() const {
  std::size_t sum = 0;
  for (const Buffer* buffer : {&convolved_, &pooled_, &one_pooled_, &d_convolved_, &delta_, &delta_below_,
                               &delta_memory_, &rounded_, &rounded_x_, &rounded_w_, &rounded_d_}) {
    sum += buffer->bytes();
  }
  for (const Dense* layer : {&hidden_, &last_}) sum += layer->output.bytes() + layer->input_memory.bytes();
  return sum;
}

}  // namespace kolo::models
