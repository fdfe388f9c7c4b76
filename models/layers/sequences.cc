#include "models/layers/sequences.h"

#include <fmt/format.h>

#include <utility>

#include "models/util/error.h"

namespace kolo::models {
namespace {

constexpr double usual_deviation = 0.02;

struct EmbeddingKept final : Kept {
  Buffer output;
  Tensor tokens;

  std::size_t bytes() const override { return output.bytes(); }
};

struct RmsNormKept final : Kept {
  Buffer sum, output, inverse_memory;
  Tensor x, inverse;

  std::size_t bytes() const override { return bytes_of({&sum, &output, &inverse_memory}); }
};

struct AttentionKept final : Kept {
  Buffer input, q, k, v, attended, sums, output;
  Tensor x, out, log_sums;  // x and out in the dtype of products
  HeadTensors heads;

  std::size_t bytes() const override { return bytes_of({&input, &q, &k, &v, &attended, &sums, &output}); }
};

struct SwiGluKept final : Kept {
  Buffer input, wide, activation, output;
  Tensor x, gate_up, s;

  std::size_t bytes() const override { return bytes_of({&input, &wide, &activation, &output}); }
};

struct ResidualKept final : Kept {
  std::unique_ptr<Kept> norm, inner;
  Buffer d;

  std::size_t bytes() const override { return norm->bytes() + inner->bytes() + d.bytes(); }
};

std::size_t add_matrix(ParameterList& parameters, std::string_view layer, std::string_view name, std::int64_t out,
                       std::int64_t in, double deviation) {
  return parameters.add(fmt::format("{}.{}.weight", layer, name), {out, in}, Initial::normal(deviation), true);
}

/// Whether the pass back reads an activation again rather than computing it: where moving less is worth the memory.
bool keeps_activation(const Context& context) {
  return context.kept() != DType::f32;
}

/// The gradient of an output in the dtype of products, as rows.
Tensor rounded_rows(const Flow& d, std::int64_t width, const Context& context) {
  if (d.rounded.data != nullptr) return as_rows(d.rounded, width);
  return as_rows(context.rounded(d.x, context.workspace.d_items, "gradients of a layer's output"), width);
}

}  // namespace

Embedding::Embedding(ParameterList& parameters, std::string_view name, std::int64_t vocabulary, std::int64_t dim)
    : table_{vocabulary, dim},
      weight_(parameters.add(fmt::format("{}.weight", name), table_, Initial::normal(usual_deviation), true)) {}

std::unique_ptr<Kept> Embedding::make_kept() const {
  return std::make_unique<EmbeddingKept>();
}

Flow Embedding::forward(const Flow& in, Kept& kept, const Context& context) {
  auto& own = static_cast<EmbeddingKept&>(kept);
  own.tokens = in.x;
  const Tensor x =
      own.output.make(context.compute, DType::f32, {in.x.shape[0], in.x.shape[1], table_[1]}, "the embedding's output");
  context.compute.embed(Values(context, weight_, table_), in.x, x);
  return {.x = x};
}

Flow Embedding::backward(const Flow& d, Kept& kept, const Context& context) {
  const Tensor gradient = reshaped(context.store.gradients(weight_, 1), table_);
  if (!context.pass.add && !shared_) context.compute.fill(gradient, 0);
  context.compute.embed_backward(static_cast<EmbeddingKept&>(kept).tokens, d.x, gradient);
  context.finish(weight_);
  return {};
}

RmsNorm::RmsNorm(ParameterList& parameters, std::string_view name, std::int64_t dim, double eps)
    : dim_(dim), eps_(eps), gain_(parameters.add(fmt::format("{}.weight", name), {dim}, Initial::constant(1), false)) {}

std::unique_ptr<Kept> RmsNorm::make_kept() const {
  return std::make_unique<RmsNormKept>();
}

const Tensor& RmsNorm::normalised(const Kept& kept) {
  return static_cast<const RmsNormKept&>(kept).x;
}

Flow RmsNorm::forward(const Flow& in, Kept& kept, const Context& context) {
  auto& own = static_cast<RmsNormKept&>(kept);
  Compute& compute = context.compute;
  own.x = in.more.data == nullptr ? in.x : own.sum.make(compute, DType::f32, in.x.shape, "the residual stream");
  own.inverse = own.inverse_memory.make(compute, DType::f32, {in.x.elements() / dim_}, "a norm's scale");
  const Tensor h = own.output.make(compute, context.items, in.x.shape, "a norm's output");
  compute.rms_norm(in.x, in.more, own.x, Values(context, gain_, {dim_}), eps_, h, own.inverse);
  return {.x = h};
}

/// Gains' gradients are summed row by row.
void RmsNorm::add_backward(const Tensor& dh, const Tensor& d, const Tensor& d_items, Kept& kept,
                           const Context& context) const {
  auto& own = static_cast<RmsNormKept&>(kept);
  const Tensor d_gain = context.store.gradients(gain_, 1);
  if (!context.pass.add) context.compute.fill(d_gain, 0);
  context.compute.rms_norm_backward(own.x, Values(context, gain_, {dim_}), own.inverse, dh, d, d_gain, d_items);
  context.finish(gain_);
}

Flow RmsNorm::backward(const Flow& d, Kept& kept, const Context& context) {
  const Tensor dx = context.workspace.beside(context.compute, d.x, static_cast<RmsNormKept&>(kept).x.shape);
  context.compute.fill(dx, 0);
  add_backward(d.x, dx, {}, kept, context);
  return {.x = dx};
}

Attention::Attention(ParameterList& parameters, std::string_view name, std::int64_t dim, const Heads& heads,
                     std::vector<double> rotations, double residual)
    : dim_(dim), heads_(heads), steps_(std::move(rotations)) {
  const std::int64_t kv = heads.kv_heads * heads.head_dim;
  q_ = add_matrix(parameters, name, "q_proj", out(), dim, usual_deviation);
  k_ = add_matrix(parameters, name, "k_proj", kv, dim, usual_deviation);
  v_ = add_matrix(parameters, name, "v_proj", kv, dim, usual_deviation);
  o_ = add_matrix(parameters, name, "o_proj", dim, out(), residual);
}

std::unique_ptr<Kept> Attention::make_kept() const {
  return std::make_unique<AttentionKept>();
}

RotationTables Attention::rotations(const Context& context, std::int64_t positions) const {
  auto& all = context.workspace.rotations;
  return all.try_emplace(steps_, steps_).first->second.tables(context.compute, positions);
}

Flow Attention::forward(const Flow& in, Kept& kept, const Context& context) {
  auto& own = static_cast<AttentionKept&>(kept);
  Compute& compute = context.compute;
  const std::int64_t sequences = in.x.shape[0], positions = in.x.shape[1], rows = sequences * positions;
  own.x = as_rows(context.rounded(in.x, own.input, "a layer's input"), dim_);
  const Tensor qkv = context.workspace.wide.make(compute, context.kept(), {rows, heads_.row()},
                                                 "queries, keys and values of all heads");
  compute.product({.transpose_b = true}, own.x, Values(context, q_, 3, context.items, {heads_.row(), dim_}), qkv);
  const auto of_heads = [&](Buffer& memory, std::int64_t heads, const char* what) {
    return memory.make(compute, context.kept(), {sequences, heads, positions, heads_.width()}, what);
  };
  own.heads = {.q = of_heads(own.q, heads_.heads, "queries"),
               .k = of_heads(own.k, heads_.kv_heads, "keys"),
               .v = of_heads(own.v, heads_.kv_heads, "values")};
  compute.split_heads(heads_, rotations(context, positions), reshaped(qkv, {sequences, positions, heads_.row()}),
                      own.heads);
  own.out = own.attended.make(compute, context.items, {rows, out()}, "attention's output");
  own.log_sums = own.sums.make(compute, DType::f32, {sequences, heads_.heads, positions}, "attention's sums");
  compute.attend(heads_, own.heads, own.out, own.log_sums);
  if (context.repeat) return {};
  const Tensor y = context.output(own.output, {rows, dim_}, "a layer's output", context.kept());
  compute.product({.transpose_b = true}, own.out, Values(context, o_, 1, context.items, {dim_, out()}), y);
  return {.x = reshaped(y, in.x.shape)};
}

Flow Attention::backward(const Flow& d, Kept& kept, const Context& context) {
  auto& own = static_cast<AttentionKept&>(kept);
  Compute& compute = context.compute;
  Workspace& workspace = context.workspace;
  const Tensor& q = own.heads.q;
  const std::int64_t sequences = q.shape[0], positions = q.shape[2], rows = sequences * positions;
  const Tensor dy = rounded_rows(d, dim_, context);
  const Product onto_weight{.transpose_a = true, .add = context.pass.add};
  compute.product(onto_weight, dy, own.out, reshaped(context.store.gradients(o_, 1), {dim_, out()}));
  context.finish(o_);
  const Tensor d_out = workspace.beside(compute, d.x, {rows, out()}, context.kept());
  compute.product({}, dy, Values(context, o_, 1, context.items, {dim_, out()}), d_out);
  const Tensor d_qkv = (context.items == DType::f32 ? workspace.wide : workspace.items)
                           .make(compute, context.items, {rows, heads_.row()}, "gradients of all heads");
  compute.attend_backward(heads_, rotations(context, positions), own.heads, own.out, own.log_sums, d_out,
                          reshaped(d_qkv, {sequences, positions, heads_.row()}));
  compute.product(onto_weight, d_qkv, own.x, reshaped(context.store.gradients(q_, 3), {heads_.row(), dim_}));
  for (const std::size_t index : {v_, k_, q_}) context.finish(index);
  const Tensor dx = context.gradient(d.x, {rows, dim_});
  compute.product({}, d_qkv, Values(context, q_, 3, context.items, {heads_.row(), dim_}), dx);
  return {.x = reshaped(dx, {sequences, positions, dim_})};
}

void Attention::backward_order(std::vector<std::size_t>& order) const {
  order.insert(order.end(), {o_, v_, k_, q_});
}

SwiGlu::SwiGlu(ParameterList& parameters, std::string_view name, std::int64_t dim, std::int64_t width, double residual)
    : dim_(dim), width_(width) {
  gate_ = add_matrix(parameters, name, "gate_proj", width, dim, usual_deviation);
  up_ = add_matrix(parameters, name, "up_proj", width, dim, usual_deviation);
  down_ = add_matrix(parameters, name, "down_proj", dim, width, residual);
}

std::unique_ptr<Kept> SwiGlu::make_kept() const {
  return std::make_unique<SwiGluKept>();
}

Flow SwiGlu::forward(const Flow& in, Kept& kept, const Context& context) {
  auto& own = static_cast<SwiGluKept&>(kept);
  Compute& compute = context.compute;
  own.x = as_rows(context.rounded(in.x, own.input, "a layer's input"), dim_);
  const std::int64_t rows = own.x.shape[0];
  own.gate_up = own.wide.make(compute, context.kept(), {rows, 2 * width_}, "the ffn's gates");
  compute.product({.transpose_b = true}, own.x, Values(context, gate_, 2, context.items, {2 * width_, dim_}),
                  own.gate_up);
  const bool keeps = keeps_activation(context);
  if (context.repeat && !keeps) return {};
  Buffer& scratch = context.items == DType::f32 ? context.workspace.wide : context.workspace.items;
  const Tensor s =
      (keeps ? own.activation : scratch).make(compute, context.items, {rows, width_}, "the ffn's activation");
  compute.swiglu(own.gate_up, s);
  own.s = keeps ? s : Tensor{};
  if (context.repeat) return {};
  const Tensor y = context.output(own.output, {rows, dim_}, "a layer's output", context.kept());
  compute.product({.transpose_b = true}, s, Values(context, down_, 1, context.items, {dim_, width_}), y);
  return {.x = reshaped(y, in.x.shape)};
}

/// In f32 the gradients are in-place.
Flow SwiGlu::backward(const Flow& d, Kept& kept, const Context& context) {
  auto& own = static_cast<SwiGluKept&>(kept);
  Compute& compute = context.compute;
  Workspace& workspace = context.workspace;
  const std::int64_t rows = own.x.shape[0];
  const Tensor dy = rounded_rows(d, dim_, context);
  const Tensor ds = workspace.wide.make(compute, context.kept(), {rows, width_}, "gradients of the ffn's activation");
  compute.product({}, dy, Values(context, down_, 1, context.items, {dim_, width_}), ds);
  Tensor d_gate_up = own.gate_up, s = ds;
  if (context.items != DType::f32) {
    const bool again = own.s.data == nullptr;
    const Tensor both =
        workspace.items.make(compute, context.items, {rows, (again ? 3 : 2) * width_}, "gradients of the ffn");
    d_gate_up = part_of(both, 0, {rows, 2 * width_});
    s = again ? part_of(both, d_gate_up.elements(), {rows, width_}) : own.s;
  }
  compute.swiglu_backward(own.gate_up, ds, d_gate_up, s.data == own.s.data ? Tensor{} : s);
  const Product onto_weight{.transpose_a = true, .add = context.pass.add};
  compute.product(onto_weight, dy, s, reshaped(context.store.gradients(down_, 1), {dim_, width_}));
  context.finish(down_);
  compute.product(onto_weight, d_gate_up, own.x, reshaped(context.store.gradients(gate_, 2), {2 * width_, dim_}));
  for (const std::size_t index : {up_, gate_}) context.finish(index);
  const Tensor dx = context.gradient(d.x, {rows, dim_});
  compute.product({}, d_gate_up, Values(context, gate_, 2, context.items, {2 * width_, dim_}), dx);
  return {.x = reshaped(dx, d.x.shape)};
}

void SwiGlu::backward_order(std::vector<std::size_t>& order) const {
  order.insert(order.end(), {down_, up_, gate_});
}

Residual::Residual(std::unique_ptr<RmsNorm> norm, std::unique_ptr<Layer> inner)
    : norm_(std::move(norm)), inner_(std::move(inner)) {
  if (inner_->keeps_gradient()) return;
  throw ModelError(
      "a residual layer cannot end in an activation (the gradient passes by it); put the activation "
      "before its last layer");
}

std::unique_ptr<Kept> Residual::make_kept() const {
  auto kept = std::make_unique<ResidualKept>();
  kept->norm = norm_->make_kept();
  kept->inner = inner_->make_kept();
  return kept;
}

Flow Residual::forward(const Flow& in, Kept& kept, const Context& context) {
  auto& own = static_cast<ResidualKept&>(kept);
  Context within = context;
  within.passing = false;
  within.repeat = false;
  const Flow h = norm_->forward(in, *own.norm, within);
  within.passing = true;
  within.repeat = context.repeat;
  return {.x = RmsNorm::normalised(*own.norm), .more = inner_->forward(h, *own.inner, within).x};
}

/// The gradient of x is that of the sum, and what comes through the inner layers is added to it.
Flow Residual::backward(const Flow& d, Kept& kept, const Context& context) {
  auto& own = static_cast<ResidualKept&>(kept);
  Context within = context;
  within.input_gradient = within.gradient_kept = true;
  Flow below = d;
  if (context.workspace.lends(d.x)) {  // which the inner layers use
    below.x = own.d.make(context.compute, DType::f32, d.x.shape, "the residual stream's gradient");
    context.compute.copy(d.x, below.x);
  }
  if (context.items != DType::f32 && below.rounded.data == nullptr) {
    below.rounded = context.rounded(d.x, context.workspace.residual_items, "the residual stream's gradient");
  }
  const Flow dh = inner_->backward(below, *own.inner, within);
  norm_->add_backward(dh.x, below.x, below.rounded, *own.norm, within);
  return below;
}

void Residual::backward_order(std::vector<std::size_t>& order) const {
  inner_->backward_order(order);
  norm_->backward_order(order);
}

}  // namespace kolo::models
