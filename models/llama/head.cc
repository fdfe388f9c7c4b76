#include "models/llama/head.h"

#include <fmt/format.h>

#include <algorithm>

namespace kolo::models {
namespace {

/// Scratch memory but for d: a group is done before the next one begins.
struct HeadKept final : Kept {
  Buffer h_memory, inverse_memory, logits, d_logits, d_h, d, d_items;
  Tensor h, inverse;  // of a group

  std::size_t bytes() const override {
    return bytes_of({&h_memory, &inverse_memory, &logits, &d_logits, &d_h, &d, &d_items});
  }
};

}  // namespace

LanguageHead::LanguageHead(ParameterList& parameters, const Names& names, std::int64_t dim, std::int64_t vocabulary,
                           double eps, Embedding* tied)
    : dim_(dim),
      vocabulary_(vocabulary),
      eps_(eps),
      tied_(tied != nullptr),
      gain_(parameters.add(fmt::format("{}.weight", names.norm), {dim}, Initial::constant(1), false)),
      head_(tied_ ? tied->share()
                  : parameters.add(fmt::format("{}.weight", names.head), {vocabulary, dim}, Initial::normal(0.02),
                                   true)) {}

std::unique_ptr<Kept> LanguageHead::make_kept() const {
  return std::make_unique<HeadKept>();
}

/// Rows at a time: enough for products to run fast, also where each goes over the gradient of a head that is too large
/// for the cache, and logits within 64 MiB. A GPU has more to do at once, and more memory: 2^29 of them.
std::int64_t LanguageHead::group(const Compute& compute) const {
  constexpr std::int64_t least = 64, most_on_gpu = 8192;
  if (compute.device().kind != DeviceKind::cpu)
    return std::clamp((std::int64_t{1} << 29) / vocabulary_, least, most_on_gpu);
  constexpr std::int64_t most_logits = std::int64_t{1} << 24, cached = std::int64_t{1} << 18;
  const std::int64_t most = vocabulary_ * dim_ <= cached ? 128 : 512;
  return std::clamp(most_logits / vocabulary_, least, most);
}

Tensor LanguageHead::logits(const Flow& in, std::int64_t first, std::int64_t count, Kept& kept,
                            const Context& context) {
  return logits(in, first, count, DType::f32, kept, context);
}

Tensor LanguageHead::logits(const Flow& in, std::int64_t first, std::int64_t count, DType dtype, Kept& kept,
                            const Context& context) {
  auto& own = static_cast<HeadKept&>(kept);
  Compute& compute = context.compute;
  own.h = own.h_memory.make(compute, context.items, {count, dim_}, "the last norm's output");
  own.inverse = own.inverse_memory.make(compute, DType::f32, {count}, "the last norm's scale");
  compute.rms_norm(rows_of(in.x, dim_, first, count), {}, {}, Values(context, gain_, {dim_}), eps_, own.h, own.inverse);
  const Tensor logits = own.logits.make(compute, dtype, {count, vocabulary_}, "logits");
  compute.product({.transpose_b = true}, own.h, Values(context, head_, 1, context.items, {vocabulary_, dim_}), logits);
  return logits;
}

void LanguageHead::forward(const Flow& in, const Tensor& targets, const Tensor& sums, Kept& kept,
                           const Context& context) {
  const std::int64_t most = group(context.compute);
  for (std::int64_t first = 0; first < targets.elements(); first += most) {
    const std::int64_t count = std::min(most, targets.elements() - first);
    const Tensor of_group = logits(in, first, count, context.kept(), kept, context);
    context.compute.cross_entropy(of_group, reshaped(rows_of(targets, 1, first, count), {count}), 1, {}, sums);
  }
}

Flow LanguageHead::backward(const Flow& in, const Tensor& targets, const Tensor& sums, Kept& kept,
                            const Context& context) {
  auto& own = static_cast<HeadKept&>(kept);
  Compute& compute = context.compute;
  const std::int64_t rows = targets.elements();
  const bool rounds = context.items != DType::f32;
  const Tensor d_head = reshaped(context.store.gradients(head_, 1), {vocabulary_, dim_});
  const Tensor d_gain = context.store.gradients(gain_, 1);
  Flow d{.x = own.d.make(compute, DType::f32, in.x.shape, "the residual stream's gradient")};
  if (rounds) d.rounded = own.d_items.make(compute, context.items, in.x.shape, "the residual stream's gradient");
  compute.fill(d.x, 0);
  if (!context.pass.add) compute.fill(d_gain, 0);
  const std::int64_t most = group(compute);
  for (std::int64_t first = 0; first < rows; first += most) {
    const std::int64_t count = std::min(most, rows - first);
    const Tensor of_group = logits(in, first, count, context.kept(), kept, context);
    compute.cross_entropy(of_group, reshaped(rows_of(targets, 1, first, count), {count}), context.pass.scale, of_group,
                          sums);
    const Tensor d_logits = context.rounded(of_group, own.d_logits, "gradients of logits");
    compute.product({.transpose_a = true, .add = context.pass.add || first > 0}, d_logits, own.h, d_head);
    const Tensor d_h = own.d_h.make(compute, context.kept(), {count, dim_}, "gradients of the last norm's output");
    compute.product({}, d_logits, Values(context, head_, 1, context.items, {vocabulary_, dim_}), d_h);
    compute.rms_norm_backward(rows_of(in.x, dim_, first, count), Values(context, gain_, {dim_}), own.inverse, d_h,
                              rows_of(d.x, dim_, first, count), d_gain,
                              rounds ? rows_of(d.rounded, dim_, first, count) : Tensor{});
  }
  if (!tied_) context.finish(head_);
  context.finish(gain_);
  return d;
}

void LanguageHead::backward_order(std::vector<std::size_t>& order) const {
  if (!tied_) order.push_back(head_);
  order.push_back(gain_);
}

}  // namespace kolo::models
