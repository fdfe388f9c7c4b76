#include "models/llama/head.h"

#include <algorithm>

#include "models/compute/product.h"
#include "models/layers/layers.h"

namespace kolo::models {
namespace {

BatchResult& operator+=(BatchResult& sum, const BatchResult& part) {
  sum.loss_sum += part.loss_sum;
  sum.correct += part.correct;
  sum.targets += part.targets;
  return sum;
}

}  // namespace

/// Rows at a time: enough for products to run fast, also where each goes over the gradient of a head that is too large
/// for the cache, and logits within 64 MiB.
std::int64_t LlamaHead::group() const {
  constexpr std::int64_t most_logits = std::int64_t{1} << 24, cached = std::int64_t{1} << 18;
  const std::int64_t most = shape_->vocabulary * shape_->dim <= cached ? 128 : 512;
  return std::clamp(most_logits / shape_->vocabulary, std::int64_t{64}, most);
}

const float* LlamaHead::logits(const Input& input, std::int64_t first, std::int64_t count) {
  const std::int64_t dim = shape_->dim;
  MatmulItem* const h = h_.items(precision_, count * dim, "the last norm's output");
  loops_->rms_norm(count, dim, input.below + first * dim, input.more + first * dim,
                   x_.floats(count * dim, "the last layer's output"), input.norm, shape_->norm_eps, h,
                   inverse_.floats(count, "the last norm's scale"));
  float* const logits = logits_.floats(count * shape_->vocabulary, "logits");
  product_forward(precision_, count, dim, shape_->vocabulary, h, input.head, logits);
  return logits;
}

BatchResult LlamaHead::row_losses(const Input& input, std::int64_t first, std::int64_t count, bool gradients,
                                  float scale) {
  float* const logits = logits_.floats();
  const auto targets = input.targets.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count));
  return softmax_cross_entropy(count, shape_->vocabulary, logits, targets, gradients ? logits : nullptr, scale);
}

BatchResult LlamaHead::loss(const Input& input) {
  BatchResult sum;
  for (std::int64_t first = 0; first < input.rows; first += group()) {
    const std::int64_t count = std::min(group(), input.rows - first);
    logits(input, first, count);
    sum += row_losses(input, first, count, false, 1);
  }
  return sum;
}

BatchResult LlamaHead::loss_and_gradients(const Input& input, const Output& output) {
  BatchResult sum;
  for (std::int64_t first = 0; first < input.rows; first += group()) {
    const std::int64_t count = std::min(group(), input.rows - first);
    logits(input, first, count);
    sum += row_losses(input, first, count, true, output.scale);
    group_backward(input, first, count, output);
  }
  return sum;
}

void LlamaHead::group_backward(const Input& input, std::int64_t first, std::int64_t count, const Output& output) {
  const std::int64_t dim = shape_->dim, vocabulary = shape_->vocabulary;
  const MatmulItem* const d_logits =
      rounded(precision_, count * vocabulary, logits_.floats(), d_logits_, "gradients of logits");
  product_weight(precision_, count, dim, vocabulary, d_logits, h_.items(), output.add || first > 0, output.d_head);
  float* const d = output.descent.d + first * dim;
  float* const d_h = d_h_.floats(count * dim, "gradients of the last norm's output");
  product_backward(precision_, count, dim, vocabulary, d_logits, input.head, d_h);
  std::fill_n(d, count * dim, 0.0f);
  MatmulItem* const d_rounded =
      precision_ == Precision::f32 ? nullptr : item_at(output.descent.d_rounded, precision_, first * dim);
  loops_->rms_norm_backward(count, dim, x_.floats(), input.norm, inverse_.floats(), d_h, d, output.d_norm, d_rounded);
}

std::size_t LlamaHead::bytes() const {
  std::size_t sum = 0;
  for (const Buffer* buffer : {&x_, &h_, &inverse_, &logits_, &d_logits_, &d_h_}) sum += buffer->bytes();
  return sum;
}

}  // namespace kolo::models
