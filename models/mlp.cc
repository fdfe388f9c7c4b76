#include "models/mlp.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "models/error.h"
#include "models/layers.h"
#include "models/random.h"

namespace kolo::models {
namespace {

void grow(AlignedFloats& buffer, std::int64_t elements) {
  if (buffer.size() < static_cast<std::size_t>(elements)) buffer.resize(static_cast<std::size_t>(elements));
}

}  // namespace

Mlp::Mlp(std::vector<std::int64_t> sizes) : sizes_(std::move(sizes)) {
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
  outputs_.resize(layers());
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
  for (std::size_t layer = 0; layer < layers(); ++layer) {
    const DenseShape shape{batch.examples, sizes_[layer], sizes_[layer + 1]};
    grow(outputs_[layer], shape.examples * shape.outputs);
    float* const out = outputs_[layer].data();
    const Activation activation = layer + 1 == layers() ? Activation::none : Activation::relu;
    dense_forward(shape, in, weight(layer).value.data(), bias(layer).value.data(), activation, out);
    in = out;
  }
}

// delta_ comes in as the gradient of the logits. A layer's bias gradient is the sum of its delta's rows, which for
// hidden layers was taken in the pass that masked the delta.
void Mlp::backward(const Batch& batch, const GradReady& grad_ready, Gradient gradient) {
  bias_gradient(batch.examples, sizes_.back(), delta_.data(), bias(layers() - 1).gradient.data(), gradient);
  for (std::size_t layer = layers(); layer-- > 0;) {
    const DenseShape shape{batch.examples, sizes_[layer], sizes_[layer + 1]};
    grad_ready(2 * layer + 1);
    const float* const in = layer == 0 ? batch.inputs.data() : outputs_[layer - 1].data();
    dense_backward_weight(shape, in, delta_.data(), weight(layer).gradient.data(), gradient);
    grad_ready(2 * layer);
    if (layer == 0) return;
    grow(delta_below_, shape.examples * shape.inputs);
    dense_backward_input(shape, delta_.data(), weight(layer).value.data(), delta_below_.data());
    relu_backward(shape.examples, shape.inputs, in, delta_below_.data(), bias(layer - 1).gradient.data(), gradient);
    std::swap(delta_, delta_below_);
  }
}

BatchResult Mlp::forward_backward(const Batch& batch, const GradReady& grad_ready, const Pass& pass) {
  check(batch);
  const Gradient gradient = pass.add ? Gradient::add : Gradient::overwrite;
  if (batch.examples == 0) {
    no_gradients(parameters_, grad_ready, pass);
    return {};
  }
  forward(batch);
  grow(delta_, batch.examples * sizes_.back());
  const BatchResult result = softmax_cross_entropy(batch.examples, sizes_.back(), outputs_.back().data(), batch.targets,
                                                   delta_.data(), pass.scale);
  backward(batch, grad_ready, gradient);
  return result;
}

BatchResult Mlp::evaluate(const Batch& batch) {
  const std::span<const float> out = logits(batch);
  return softmax_cross_entropy(batch.examples, sizes_.back(), out.data(), batch.targets, nullptr);
}

std::size_t Mlp::activation_bytes() const {
  std::size_t elements = delta_.capacity() + delta_below_.capacity();
  for (const AlignedFloats& output : outputs_) elements += output.capacity();
  return elements * sizeof(float);
}

std::span<const float> Mlp::logits(const Batch& batch) {
  check(batch);
  if (batch.examples == 0) return {};
  forward(batch);
  return std::span(outputs_.back()).first(static_cast<std::size_t>(batch.examples * sizes_.back()));
}

}  // namespace kolo::models
