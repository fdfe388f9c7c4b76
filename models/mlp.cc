#include "models/mlp.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "models/compute/product.h"
#include "models/compute/random.h"
#include "models/layers/layers.h"
#include "models/util/error.h"

namespace kolo::models {
Mlp::Mlp(std::vector<std::int64_t> sizes, Precision precision) : sizes_(std::move(sizes)), precision_(precision) {
  constexpr std::int64_t largest = std::int64_t{1} << 24;  // keeps every product of two sizes far from overflow
  if (sizes_.size() < 2) throw ModelError("an MLP needs at least two sizes (inputs and outputs); say 784,1024,1024,10");
  for (std::int64_t size : sizes_) {
    if (size >= 1 && size <= largest) continue;
    throw ModelError(
        fmt::format("an MLP cannot have a layer of size {} (1 to {}); say 784,1024,1024,10", size, largest));
  }
  for (std::size_t layer = 0; layer < layers(); ++layer) {
    const std::int64_t in = sizes_[layer], out = sizes_[layer + 1];
    parameters_.push_back({fmt::format("layers.{}.weight", layer), Shape{out, in}, {}, {}});
    parameters_.push_back({fmt::format("layers.{}.bias", layer), Shape{out}, {}, {}});
  }
  layers_.resize(layers());
}

void Mlp::bind(std::span<float> values, std::span<float> gradients) {
  bind_parameters(parameters_, values, gradients);
  bound_ = true;
}

void Mlp::initialise(std::uint64_t seed) {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    Random random(seed, i);
    const auto bound = static_cast<float>(1 / std::sqrt(static_cast<double>(sizes_[i / 2])));
    for (float& value : parameters_[i].value) value = random.symmetric(bound);
  }
}

void Mlp::check(const Batch& batch) const {
  if (!bound_) throw ModelError("the model has no storage; call bind() before the first pass");
  const auto examples = static_cast<std::size_t>(batch.examples);
  const auto inputs = static_cast<std::size_t>(sizes_.front());
  if (batch.inputs.size() == examples * inputs && batch.targets.size() == examples) return;
  throw ModelError(fmt::format("a batch of {} examples has {} inputs and {} targets (the model takes {} inputs each)",
                               batch.examples, batch.inputs.size(), batch.targets.size(), inputs));
}

void Mlp::forward(const Batch& batch) {
  const float* in = batch.inputs.data();
  for (std::size_t i = 0; i < layers(); ++i) {
    Layer& layer = layers_[i];
    const std::int64_t inputs = sizes_[i], outputs = sizes_[i + 1];
    float* const out = layer.output.floats(batch.examples * outputs, "a layer's output");
    layer.input = rounded(precision_, batch.examples * inputs, in, layer.input_memory, "a layer's input");
    layer.weight = rounded(precision_, inputs * outputs, weight(i).value.data(), layer.weight_memory, "weights");
    product_forward(precision_, batch.examples, inputs, outputs, layer.input, layer.weight, out);
    const Activation activation = i + 1 == layers() ? Activation::none : Activation::relu;
    add_bias(batch.examples, outputs, bias(i).value.data(), activation, out);
    in = out;
  }
}

// delta_ comes in as the gradient of the logits. A layer's bias gradient is the sum of its delta's rows, which for
// hidden layers was taken in the pass that masked the delta.
void Mlp::backward(const Batch& batch, const GradReady& grad_ready, Gradient gradient) {
  const std::int64_t examples = batch.examples;
  bias_gradient(examples, sizes_.back(), delta_.floats(), bias(layers() - 1).gradient.data(), gradient);
  for (std::size_t i = layers(); i-- > 0;) {
    const std::int64_t inputs = sizes_[i], outputs = sizes_[i + 1];
    grad_ready(2 * i + 1);
    const MatmulItem* const dy =
        rounded(precision_, examples * outputs, delta_.floats(), delta_memory_, "gradients of a layer's output");
    product_weight(precision_, examples, inputs, outputs, dy, layers_[i].input, gradient == Gradient::add,
                   weight(i).gradient.data());
    grad_ready(2 * i);
    if (i == 0) return;
    float* const below = delta_below_.floats(examples * inputs, "gradients of a layer's input");
    product_backward(precision_, examples, inputs, outputs, dy, layers_[i].weight, below);
    relu_backward(examples, inputs, layers_[i - 1].output.floats(), below, bias(i - 1).gradient.data(), gradient);
    std::swap(delta_, delta_below_);
  }
}

BatchResult Mlp::forward_backward(const Batch& batch, const GradReady& grad_ready, const Pass& pass) {
  check(batch);
  const Gradient gradient = pass.add ? Gradient::add : Gradient::overwrite;
  if (batch.examples == 0) {
    no_gradients(*this, grad_ready, pass);
    return {};
  }
  forward(batch);
  float* const delta = delta_.floats(batch.examples * sizes_.back(), "gradients of logits");
  const BatchResult result = softmax_cross_entropy(batch.examples, sizes_.back(), layers_.back().output.floats(),
                                                   batch.targets, delta, pass.scale);
  backward(batch, grad_ready, gradient);
  return result;
}

BatchResult Mlp::evaluate(const Batch& batch) {
  const std::span<const float> out = logits(batch);
  return softmax_cross_entropy(batch.examples, sizes_.back(), out.data(), batch.targets, nullptr);
}

std::size_t Mlp::activation_bytes() const {
  std::size_t sum = delta_.bytes() + delta_below_.bytes() + delta_memory_.bytes();
  for (const Layer& layer : layers_) sum += layer.output.bytes() + layer.input_memory.bytes();
  return sum;
}

std::span<const float> Mlp::logits(const Batch& batch) {
  check(batch);
  if (batch.examples == 0) return {};
  forward(batch);
  return {layers_.back().output.floats(), static_cast<std::size_t>(batch.examples * sizes_.back())};
}

}  // namespace kolo::models
