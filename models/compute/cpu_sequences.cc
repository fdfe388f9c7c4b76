#include <algorithm>
#include <cmath>

#include "models/compute/cpu_compute.h"
#include "models/compute/cpu_items.h"
#include "models/compute/denormals.h"

namespace kolo::models {

void CpuCompute::embed(const Tensor& table, const Tensor& tokens, const Tensor& x) {
  const std::int64_t dim = row_of(table);
  for (std::int64_t i = 0; i < tokens.elements(); ++i) {
    std::copy_n(data_of(table) + data_of<std::int32_t>(tokens)[i] * dim, dim, data_of(x) + i * dim);
  }
}

void CpuCompute::embed_backward(const Tensor& tokens, const Tensor& d, const Tensor& d_table) {
  const DenormalsAreZero in_here;
  const std::int64_t dim = row_of(d_table);
  for (std::int64_t token = 0; token < tokens.elements(); ++token) {
    float* const row = data_of(d_table) + data_of<std::int32_t>(tokens)[token] * dim;
    const float* const from = data_of(d) + token * dim;
    for (std::int64_t i = 0; i < dim; ++i) row[i] += from[i];
  }
}

void CpuCompute::rms_norm(const Tensor& x, const Tensor& more, const Tensor& sum, const Tensor& gain, double eps,
                          const Tensor& h, const Tensor& inverse) {
  const DenormalsAreZero in_here;
  kernels_of(h).rms_norm(rows_of(x), row_of(x), data_of(x), data_of(more), data_of(sum), data_of(gain), eps,
                         items_of(h), data_of(inverse));
}

void CpuCompute::rms_norm_backward(const Tensor& x, const Tensor& gain, const Tensor& inverse, const Tensor& dh,
                                   const Tensor& d, const Tensor& d_gain, const Tensor& d_items) {
  const DenormalsAreZero in_here;
  kernels_of(d_items).rms_norm_backward(rows_of(x), row_of(x), data_of(x), data_of(gain), data_of(inverse), data_of(dh),
                                        data_of(d), data_of(d_gain), items_of(d_items));
}

namespace {

/// The columns of one sequence's heads in rows of all, and the rows that one head has in q, k and v.
struct HeadColumns {
  HeadColumns(const Heads& of, const RotationTables& rotations, std::int64_t length)
      : heads(of), positions(length), row(length * of.width()) {
    value = {.positions = length, .half = of.head_dim / 2, .width = of.width(), .stride = of.row()};
    key = value;
    key.cosine = data_of(rotations.cosine);
    key.sine = data_of(rotations.sine);
    query = key;  // scores are q·k / √head_dim: q is scaled when it is rotated
    query.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(of.head_dim)));
  }

  std::int64_t q(std::int64_t head) const { return head * heads.head_dim; }
  std::int64_t k(std::int64_t head) const { return q(heads.heads + head); }
  std::int64_t v(std::int64_t head) const { return q(heads.heads + heads.kv_heads + head); }

  const Heads& heads;
  std::int64_t positions, row;
  HeadRows query, key, value;
};

HeadView head_view(const Heads& heads, const HeadTensors& of, std::int64_t sequence, std::int64_t head) {
  const std::int64_t positions = of.q.shape[2], row = positions * heads.width();
  const std::int64_t kv_head = head / (heads.heads / heads.kv_heads);
  const std::int64_t kv_at = (sequence * heads.kv_heads + kv_head) * row;
  return {.positions = positions,
          .width = heads.width(),
          .head_dim = heads.head_dim,
          .q = data_of(of.q) + (sequence * heads.heads + head) * row,
          .k = data_of(of.k) + kv_at,
          .v = data_of(of.v) + kv_at,
          .out_stride = heads.heads * heads.head_dim};
}

}  // namespace

void CpuCompute::split_heads(const Heads& heads, const RotationTables& rotations, const Tensor& qkv,
                             const HeadTensors& to) {
  const DenormalsAreZero in_here;
  const HeadColumns columns(heads, rotations, qkv.shape[1]);
  const Kernels& kernels = kernels_of(qkv);
  const float* from = data_of(qkv);
  float *q = data_of(to.q), *k = data_of(to.k), *v = data_of(to.v);
  for (std::int64_t sequence = 0; sequence < qkv.shape[0]; ++sequence) {
    for (std::int64_t head = 0; head < heads.heads; ++head, q += columns.row) {
      kernels.split_heads(columns.query, from + columns.q(head), q);
    }
    for (std::int64_t head = 0; head < heads.kv_heads; ++head, k += columns.row, v += columns.row) {
      kernels.split_heads(columns.key, from + columns.k(head), k);
      kernels.split_heads(columns.value, from + columns.v(head), v);
    }
    from += columns.positions * heads.row();
  }
}

void CpuCompute::attend(const Heads& heads, const HeadTensors& of, const Tensor& out, const Tensor& log_sums) {
  const DenormalsAreZero in_here;
  const std::int64_t positions = of.q.shape[2], dim = heads.heads * heads.head_dim;
  float* const scratch =
      data_of(attention_.make(*this, DType::f32, {attention_scratch(heads.width())}, "attention's blocks"));
  for (std::int64_t sequence = 0; sequence < of.q.shape[0]; ++sequence) {
    for (std::int64_t head = 0; head < heads.heads; ++head) {
      const std::int64_t at = sequence * positions * dim + head * heads.head_dim;
      kernels_of(out).attend(head_view(heads, of, sequence, head), item_at(items_of(out), precision_of(out.dtype), at),
                             data_of(log_sums) + (sequence * heads.heads + head) * positions, scratch);
    }
  }
}

/// Group by group of query heads that share keys and values, so that gradients of heads stay in cache until they are
/// merged.
void CpuCompute::attend_backward(const Heads& heads, const RotationTables& rotations, const HeadTensors& of,
                                 const Tensor& out, const Tensor& log_sums, const Tensor& d_out, const Tensor& d_qkv) {
  const DenormalsAreZero in_here;
  const HeadColumns columns(heads, rotations, of.q.shape[2]);
  const Kernels& kernels = kernels_of(out);
  const std::int64_t positions = columns.positions, row = columns.row, group = heads.heads / heads.kv_heads;
  const std::int64_t dim = heads.heads * heads.head_dim;
  float* const scratch =
      data_of(attention_.make(*this, DType::f32, {attention_scratch(heads.width())}, "attention's blocks"));
  float* const dq = data_of(head_gradients_.make(*this, DType::f32, {group + 2, row}, "gradients of a group of heads"));
  float* const dk = dq + group * row;
  float* const dv = dk + row;
  for (std::int64_t sequence = 0; sequence < of.q.shape[0]; ++sequence) {
    const std::int64_t first = sequence * positions, to = first * heads.row();
    for (std::int64_t kv_head = 0; kv_head < heads.kv_heads; ++kv_head) {
      std::fill_n(dk, 2 * row, 0.0f);
      for (std::int64_t member = 0; member < group; ++member) {
        const std::int64_t head = kv_head * group + member;
        const std::int64_t at = first * dim + columns.q(head);
        kernels.attend_backward(head_view(heads, of, sequence, head),
                                item_at(items_of(out), precision_of(out.dtype), at),
                                data_of(log_sums) + (sequence * heads.heads + head) * positions, data_of(d_out) + at,
                                {.dq = dq + member * row, .dk = dk, .dv = dv}, scratch);
        kernels.merge_heads(columns.query, dq + member * row, items_of(d_qkv), to + columns.q(head));
      }
      kernels.merge_heads(columns.key, dk, items_of(d_qkv), to + columns.k(kv_head));
      kernels.merge_heads(columns.value, dv, items_of(d_qkv), to + columns.v(kv_head));
    }
  }
}

void CpuCompute::swiglu(const Tensor& gate_up, const Tensor& s) {
  const DenormalsAreZero in_here;
  kernels_of(s).swiglu(rows_of(s), row_of(s), data_of(gate_up), items_of(s));
}

void CpuCompute::swiglu_backward(const Tensor& gate_up, const Tensor& ds, const Tensor& d_gate_up, const Tensor& s) {
  const DenormalsAreZero in_here;
  kernels_of(s).swiglu_backward(rows_of(s), row_of(s), data_of(gate_up), data_of(ds), items_of(d_gate_up), items_of(s));
}

void CpuCompute::cross_entropy(const Tensor& logits, const Tensor& targets, float scale, const Tensor& d_logits,
                               const Tensor& sums) {
  const DenormalsAreZero in_here;
  const std::int64_t classes = row_of(logits);
  const Kernels& kernels = kernels_of(logits);
  double loss = 0;
  std::int64_t correct = 0, counted = 0;
  for (std::int64_t row = 0; row < targets.elements(); ++row) {
    const std::int32_t target = data_of<std::int32_t>(targets)[row];
    float* const d_row = d_logits.data == nullptr ? nullptr : data_of(d_logits) + row * classes;
    if (target < 0) {
      if (d_row != nullptr) std::fill_n(d_row, classes, 0.0f);
      continue;
    }
    std::int64_t largest = 0;
    loss += kernels.cross_entropy(classes, data_of(logits) + row * classes, target, scale, d_row, &largest);
    correct += largest == target;
    ++counted;
  }
  double* const to = data_of<double>(sums);
  to[0] += loss;
  to[1] += static_cast<double>(correct);
  to[2] += static_cast<double>(counted);
}

}  // namespace kolo::models
