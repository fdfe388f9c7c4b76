#include "models/layers/sequential.h"

#include <utility>

namespace kolo::models {
namespace {

struct SequentialKept final : Kept {
  std::vector<std::unique_ptr<Kept>> layers;
  std::vector<Buffer> sums;  // of residual streams

  std::size_t bytes() const override {
    std::size_t all = 0;
    for (const auto& layer : layers) all += layer->bytes();
    for (const Buffer& sum : sums) all += sum.bytes();
    return all;
  }
};

struct RecomputeKept final : Kept {
  Buffer input;
  Tensor x;

  std::size_t bytes() const override { return input.bytes(); }
};

}  // namespace

Tensor settled(const Flow& flow, Buffer& memory, const Context& context) {
  if (flow.more.data == nullptr) return flow.x;
  const Tensor sum = memory.make(context.compute, DType::f32, flow.x.shape, "the residual stream");
  context.compute.add(flow.x, flow.more, sum);
  return sum;
}

std::unique_ptr<Kept> Sequential::make_kept() const {
  auto kept = std::make_unique<SequentialKept>();
  for (const auto& layer : layers_) kept->layers.push_back(layer->make_kept());
  kept->sums.resize(layers_.size());
  return kept;
}

Flow Sequential::forward(const Flow& in, Kept& kept, const Context& context) {
  auto& own = static_cast<SequentialKept&>(kept);
  Flow flow = in;
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    if (flow.more.data != nullptr && !layers_[i]->takes_more()) flow = {.x = settled(flow, own.sums[i], context)};
    const bool last = i + 1 == layers_.size();
    Context within = context;
    within.passing = last && context.passing;
    within.repeat = last && context.repeat;
    within.to_kept = last ? context.to_kept : layers_[i + 1]->takes_kept();
    flow = layers_[i]->forward(flow, *own.layers[i], within);
  }
  return flow;
}

Flow Sequential::backward(const Flow& d, Kept& kept, const Context& context) {
  Flow flow = d;
  for (std::size_t i = layers_.size(); i-- > 0;) {
    Context within = context;
    within.input_gradient = i > 0 || context.input_gradient;
    within.gradient_kept = i == 0 ? context.gradient_kept : layers_[i - 1]->takes_kept();
    flow = layers_[i]->backward(flow, *static_cast<SequentialKept&>(kept).layers[i], within);
  }
  return flow;
}

void Sequential::backward_order(std::vector<std::size_t>& order) const {
  for (std::size_t i = layers_.size(); i-- > 0;) layers_[i]->backward_order(order);
}

void Sequential::forward_absent(Kept& kept, const Context& context) {
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    layers_[i]->forward_absent(*static_cast<SequentialKept&>(kept).layers[i], context);
  }
}

void Sequential::backward_absent(Kept& kept, const Context& context) {
  for (std::size_t i = layers_.size(); i-- > 0;) {
    layers_[i]->backward_absent(*static_cast<SequentialKept&>(kept).layers[i], context);
  }
}

std::unique_ptr<Kept> Recompute::make_kept() const {
  return std::make_unique<RecomputeKept>();
}

Flow Recompute::forward(const Flow& in, Kept& kept, const Context& context) {
  auto& own = static_cast<RecomputeKept&>(kept);
  own.x = settled(in, own.input, context);
  shared_->of_ = &kept;
  Context within = context;
  within.to_kept = false;  // as when it is repeated
  return layer_->forward({.x = own.x}, *shared_->kept_, within);
}

/// What the last layer kept is still there.
Flow Recompute::backward(const Flow& d, Kept& kept, const Context& context) {
  if (std::exchange(shared_->of_, nullptr) != &kept) {
    Context again = context;
    again.repeat = true;
    layer_->forward({.x = static_cast<RecomputeKept&>(kept).x}, *shared_->kept_, again);
  }
  return layer_->backward(d, *shared_->kept_, context);
}

}  // namespace kolo::models
