#include "models/llama/block.h"

#include <algorithm>
#include <cmath>

#include "models/compute/product.h"

namespace kolo::models {

std::size_t BlockKept::bytes() const {
  std::size_t sum = 0;
  for (const Buffer* buffer : {&h1, &inverse1, &q, &k, &v, &out, &log_sums, &mid, &h2, &inverse2, &gate_up}) {
    sum += buffer->bytes();
  }
  return sum;
}

std::size_t BlockScratch::bytes() const {
  return wide.bytes() + narrow.bytes() + rounded.bytes() + head_gradient.bytes() + attention.bytes();
}

void LlamaBlock::forward(const Sequences& batch, const BlockWeights& weights, const float* below, const float* more,
                         float* x, BlockKept& kept) const {
  const std::int64_t rows = batch.rows();
  loops_->rms_norm(rows, shape_->dim, below, more, x, weights.norm1, shape_->norm_eps,
                   first_norm(kept).items(precision_, rows * shape_->dim, "the first norm's output"),
                   kept.inverse1.floats(rows, "the first norm's scale"));
  first_half(batch, weights, x, kept);
  MatmulItem* const s =
      precision_ == Precision::f32
          ? scratch_->wide.items(precision_, rows * std::max(shape_->ffn, shape_->qkv), "the ffn's activation")
          : scratch_->rounded.items(precision_, rows * std::max(3 * shape_->ffn, shape_->qkv), "the ffn's activation");
  loops_->swiglu(rows, shape_->ffn, kept.gate_up.floats(), s);
  product_forward(precision_, rows, shape_->ffn, shape_->dim, s, weights.down, scratch_->narrow.floats());
}

void LlamaBlock::repeat(const Sequences& batch, const BlockWeights& weights, const float* x, BlockKept& kept) const {
  repeat_first_norm(batch, weights, x, kept);
  first_half(batch, weights, x, kept);
}

void LlamaBlock::repeat_first_norm(const Sequences& batch, const BlockWeights& weights, const float* x,
                                   BlockKept& kept) const {
  loops_->rms_norm(batch.rows(), shape_->dim, x, nullptr, nullptr, weights.norm1, shape_->norm_eps,
                   first_norm(kept).items(), kept.inverse1.floats());
}

/// From h1 to gate_up.
void LlamaBlock::first_half(const Sequences& batch, const BlockWeights& weights, const float* x,
                            BlockKept& kept) const {
  const std::int64_t rows = batch.rows(), dim = shape_->dim;
  attention(batch, weights, kept);
  float* const narrow = scratch_->narrow.floats(rows * dim, "a layer's output");
  product_forward(precision_, rows, dim, dim, kept.out.items(), weights.o, narrow);
  loops_->rms_norm(rows, dim, x, narrow, kept.mid.floats(rows * dim, "the residual stream"), weights.norm2,
                   shape_->norm_eps, kept.h2.items(precision_, rows * dim, "the second norm's output"),
                   kept.inverse2.floats(rows, "the second norm's scale"));
  product_forward(precision_, rows, dim, 2 * shape_->ffn, kept.h2.items(), weights.gate_up,
                  kept.gate_up.floats(rows * 2 * shape_->ffn, "the ffn's gates"));
}

void LlamaBlock::attention(const Sequences& batch, const BlockWeights& weights, BlockKept& kept) const {
  const std::int64_t rows = batch.rows();
  float* const qkv =
      scratch_->wide.floats(rows * std::max(shape_->ffn, shape_->qkv), "queries, keys and values of all heads");
  product_forward(precision_, rows, shape_->dim, shape_->qkv, first_norm(kept).items(), weights.qkv, qkv);
  split(batch, qkv, kept);
  MatmulItem* const out = kept.out.items(precision_, rows * shape_->dim, "attention's output");
  float* const log_sums = kept.log_sums.floats(rows * shape_->heads, "attention's sums");
  float* const memory =
      scratch_->attention.floats(attention_scratch(batch.positions, shape_->head_width), "attention's blocks");
  for (std::int64_t sequence = 0; sequence < batch.count; ++sequence) {
    for (std::int64_t head = 0; head < shape_->heads; ++head) {
      const std::int64_t at = sequence * batch.positions * shape_->dim + shape_->q_column(head);
      loops_->attend(view(batch, kept, sequence, head), item_at(out, precision_, at),
                     log_sums + (sequence * shape_->heads + head) * batch.positions, memory);
    }
  }
}

HeadRows LlamaBlock::head_rows(const Sequences& batch, bool turned, float scale) const {
  return {.positions = batch.positions,
          .half = shape_->head_dim / 2,
          .width = shape_->head_width,
          .stride = shape_->qkv,
          .cosine = turned ? rotations_->cosine() : nullptr,
          .sine = turned ? rotations_->sine() : nullptr,
          .scale = scale};
}

/// Scores are q·k / √head_dim: q is scaled when it is rotated.
void LlamaBlock::split(const Sequences& batch, const float* qkv, BlockKept& kept) const {
  const std::int64_t row = batch.positions * shape_->head_width;  // of one head
  float* q = kept.q.floats(batch.count * shape_->heads * row, "queries");
  float* k = kept.k.floats(batch.count * shape_->kv_heads * row, "keys");
  float* v = kept.v.floats(batch.count * shape_->kv_heads * row, "values");
  const auto scale = static_cast<float>(1 / std::sqrt(static_cast<double>(shape_->head_dim)));
  const HeadRows query = head_rows(batch, true, scale), key = head_rows(batch, true, 1);
  const HeadRows value = head_rows(batch, false, 1);
  for (std::int64_t sequence = 0; sequence < batch.count; ++sequence) {
    for (std::int64_t head = 0; head < shape_->heads; ++head, q += row) {
      loops_->split_heads(query, qkv + shape_->q_column(head), q);
    }
    for (std::int64_t head = 0; head < shape_->kv_heads; ++head, k += row, v += row) {
      loops_->split_heads(key, qkv + shape_->k_column(head), k);
      loops_->split_heads(value, qkv + shape_->v_column(head), v);
    }
    qkv += batch.positions * shape_->qkv;
  }
}

HeadView LlamaBlock::view(const Sequences& batch, const BlockKept& kept, std::int64_t sequence,
                          std::int64_t head) const {
  const std::int64_t row = batch.positions * shape_->head_width;
  const std::int64_t kv_head = head / (shape_->heads / shape_->kv_heads);
  const std::int64_t kv_at = (sequence * shape_->kv_heads + kv_head) * row;
  return {.positions = batch.positions,
          .width = shape_->head_width,
          .head_dim = shape_->head_dim,
          .q = kept.q.floats() + (sequence * shape_->heads + head) * row,
          .k = kept.k.floats() + kv_at,
          .v = kept.v.floats() + kv_at,
          .out_stride = shape_->dim};
}

void LlamaBlock::backward(const Sequences& batch, const BlockWeights& weights, const float* x, BlockKept& kept,
                          const Descent& descent, const Gradients& to) const {
  const std::int64_t rows = batch.rows(), dim = shape_->dim;
  ffn_backward(batch, weights, kept, descent, to);
  product_weight(precision_, rows, dim, dim, descent.d_rounded, kept.out.items(), to.add, to.gradient(LayerPart::o));
  to.ready(LayerPart::o);
  float* const narrow = scratch_->narrow.floats();
  product_backward(precision_, rows, dim, dim, descent.d_rounded, weights.o, narrow);
  MatmulItem* const d_qkv = precision_ == Precision::f32 ? scratch_->wide.items() : scratch_->rounded.items();
  attention_backward(batch, kept, narrow, d_qkv);
  if (recompute_) repeat_first_norm(batch, weights, x, kept);
  product_weight(precision_, rows, dim, shape_->qkv, d_qkv, first_norm(kept).items(), to.add,
                 to.gradient(LayerPart::q));
  for (const LayerPart part : {LayerPart::v, LayerPart::k, LayerPart::q}) to.ready(part);
  product_backward(precision_, rows, dim, shape_->qkv, d_qkv, weights.qkv, narrow);
  loops_->rms_norm_backward(rows, dim, x, weights.norm1, kept.inverse1.floats(), narrow, descent.d,
                            to.gradient(LayerPart::norm1), precision_ == Precision::f32 ? nullptr : descent.d_rounded);
  to.ready(LayerPart::norm1);
}

/// From the layer's output down to `mid`. In f32 the gradients are in-place.
void LlamaBlock::ffn_backward(const Sequences& batch, const BlockWeights& weights, BlockKept& kept,
                              const Descent& descent, const Gradients& to) const {
  const std::int64_t rows = batch.rows(), dim = shape_->dim, ffn = shape_->ffn;
  float* const ds = scratch_->wide.floats();
  const bool in_place = precision_ == Precision::f32;
  MatmulItem* const d_gate_up = in_place ? kept.gate_up.items() : scratch_->rounded.items();
  MatmulItem* const s = in_place ? scratch_->wide.items() : item_at(d_gate_up, precision_, rows * 2 * ffn);
  product_backward(precision_, rows, ffn, dim, descent.d_rounded, weights.down, ds);
  loops_->swiglu_backward(rows, ffn, kept.gate_up.floats(), ds, d_gate_up, s);
  product_weight(precision_, rows, ffn, dim, descent.d_rounded, s, to.add, to.gradient(LayerPart::down));
  to.ready(LayerPart::down);
  product_weight(precision_, rows, dim, 2 * ffn, d_gate_up, kept.h2.items(), to.add, to.gradient(LayerPart::gate));
  for (const LayerPart part : {LayerPart::up, LayerPart::gate}) to.ready(part);
  float* const narrow = scratch_->narrow.floats();
  product_backward(precision_, rows, dim, 2 * ffn, d_gate_up, weights.gate_up, narrow);
  loops_->rms_norm_backward(rows, dim, kept.mid.floats(), weights.norm2, kept.inverse2.floats(), narrow, descent.d,
                            to.gradient(LayerPart::norm2), in_place ? nullptr : descent.d_rounded);
  to.ready(LayerPart::norm2);
}

void LlamaBlock::attention_backward(const Sequences& batch, BlockKept& kept, const float* d_out,
                                    MatmulItem* d_qkv) const {
  const std::int64_t row = batch.positions * shape_->head_width, group = shape_->heads / shape_->kv_heads;
  float* const dq = scratch_->head_gradient.floats((group + 2) * row, "gradients of a group of heads");
  float* const dk = dq + group * row;
  float* const dv = dk + row;
  const auto scale = static_cast<float>(1 / std::sqrt(static_cast<double>(shape_->head_dim)));
  const HeadRows query = head_rows(batch, true, scale), key = head_rows(batch, true, 1);
  const HeadRows value = head_rows(batch, false, 1);
  for (std::int64_t sequence = 0; sequence < batch.count; ++sequence) {
    const std::int64_t first = sequence * batch.positions;
    for (std::int64_t kv_head = 0; kv_head < shape_->kv_heads; ++kv_head) {
      std::fill_n(dk, 2 * row, 0.0f);
      for (std::int64_t member = 0; member < group; ++member) {
        const std::int64_t head = kv_head * group + member;
        const std::int64_t at = first * shape_->dim + shape_->q_column(head);
        loops_->attend_backward(view(batch, kept, sequence, head), item_at(kept.out.items(), precision_, at),
                                kept.log_sums.floats() + (sequence * shape_->heads + head) * batch.positions,
                                d_out + at, {.dq = dq + member * row, .dk = dk, .dv = dv},
                                scratch_->attention.floats());
        loops_->merge_heads(query, dq + member * row, d_qkv, first * shape_->qkv + shape_->q_column(head));
      }
      loops_->merge_heads(key, dk, d_qkv, first * shape_->qkv + shape_->k_column(kv_head));
      loops_->merge_heads(value, dv, d_qkv, first * shape_->qkv + shape_->v_column(kv_head));
    }
  }
}

}  // namespace kolo::models
