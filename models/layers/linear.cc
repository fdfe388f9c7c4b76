#include "models/layers/linear.h"

#include <fmt/format.h>

#include "models/util/error.h"

namespace kolo::models {
namespace {

struct LinearKept final : Kept {
  Buffer input, output;
  Tensor x, y;  // x in the dtype of products
  Shape x_shape;

  std::size_t bytes() const override { return bytes_of({&input, &output}); }
};

std::int64_t row_extent(const Shape& shape) {
  return shape[shape.dims() - 1];
}

Shape with_last(const Shape& shape, std::int64_t last) {
  std::vector<std::int64_t> extents(shape.extents().begin(), shape.extents().end());
  extents.back() = last;
  return Shape(extents);
}

/// The number of inputs, once it is certain that there can be such a layer.
std::int64_t checked_inputs(std::string_view name, std::int64_t in, std::int64_t out) {
  constexpr std::int64_t most = std::int64_t{1} << 48;  // keeps the sum over all layers far from overflow
  if (in >= 1 && out >= 1 && in <= most / out) return in;
  throw ModelError(
      fmt::format("{} cannot have {} inputs and {} outputs (1 to 2^48 weights); choose other sizes of the "
                  "model, or larger images",
                  name, in, out));
}

}  // namespace

Linear::Linear(ParameterList& parameters, std::string_view name, std::int64_t in, std::int64_t out,
               Activation activation)
    : in_(checked_inputs(name, in, out)),
      out_(out),
      activation_(activation),
      weight_(parameters.add(fmt::format("{}.weight", name), {out, in}, Initial::uniform(in), true)),
      bias_(parameters.add(fmt::format("{}.bias", name), {out}, Initial::uniform(in), false)) {}

std::unique_ptr<Kept> Linear::make_kept() const {
  return std::make_unique<LinearKept>();
}

Flow Linear::forward(const Flow& in, Kept& kept, const Context& context) {
  auto& own = static_cast<LinearKept&>(kept);
  own.x_shape = in.x.shape;
  own.x = as_rows(context.rounded(in.x, own.input, "a layer's input"), in_);
  own.y = context.output(own.output, {own.x.shape[0], out_}, "a layer's output");
  const Values weight(context, weight_, 1, context.items, {out_, in_}), bias(context, bias_, 1, own.y.dtype, {out_});
  context.compute.product({.transpose_b = true, .bias = bias, .activation = activation_}, own.x, weight, own.y);
  if (row_extent(in.x.shape) != in_) return {.x = own.y};
  return {.x = reshaped(own.y, with_last(in.x.shape, out_))};  // rows of sequences stay in their order
}

Flow Linear::backward(const Flow& d, Kept& kept, const Context& context) {
  auto& own = static_cast<LinearKept&>(kept);
  const Tensor dbias = context.store.gradients(bias_, 1);
  const bool summed = activation_ == Activation::none && context.kept() == context.items;  // by the weights' product
  if (!summed) {
    context.compute.bias_backward(activation_ == Activation::relu ? own.y : Tensor{}, d.x, context.pass.add, dbias);
    context.finish(bias_);
  }
  const Tensor dy = context.rounded(as_rows(d.x, out_), context.workspace.d_items, "gradients of a layer's output");
  context.compute.product({.transpose_a = true, .add = context.pass.add, .sums = summed ? dbias : Tensor{}}, dy, own.x,
                          reshaped(context.store.gradients(weight_, 1), {out_, in_}));
  if (summed) context.finish(bias_);
  context.finish(weight_);
  if (!context.input_gradient) return {};
  const Tensor dx = context.gradient(d.x, own.x.shape);
  context.compute.product({}, dy, Values(context, weight_, 1, context.items, {out_, in_}), dx);
  return {.x = reshaped(dx, own.x_shape)};
}

void Linear::backward_order(std::vector<std::size_t>& order) const {
  order.insert(order.end(), {bias_, weight_});
}

}  // namespace kolo::models
