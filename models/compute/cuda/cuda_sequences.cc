#include <bit>
#include <cmath>
#include <type_traits>

#include "models/compute/cuda/cuda_compute.h"
#include "models/util/error.h"

namespace kolo::models::cuda {

void CudaCompute::embed(const Tensor& table, const Tensor& tokens, const Tensor& x) {
  device_->launch(
      Embed{{.rows = tokens.elements()}, data_of(table), data_of<std::int32_t>(tokens), row_of(table), data_of(x)});
}

// Rows of one token lie side by side then: the keys of tokens are sorted, in pieces that a block sorts in shared
// memory, then over pieces.
void CudaCompute::embed_backward(const Tensor& tokens, const Tensor& d, const Tensor& d_table) {
  const Index count = tokens.elements();
  if (count == 0) return;
  const auto padded = static_cast<Index>(std::bit_ceil(static_cast<std::uint64_t>(count)));
  auto* const keys = data_of<std::uint64_t>(keys_.make(*this, DType::u64, {padded}, "keys of tokens"));
  device_->launch(MakeKeys{{.count = padded}, data_of<std::int32_t>(tokens), count, keys});
  device_->launch(SortPieces{keys, padded, 2, least(SortPieces::piece, padded)});
  for (Index size = 2 * SortPieces::piece; size <= padded; size *= 2) {
    for (Index step = size / 2; step >= SortPieces::piece; step /= 2) {
      device_->launch(SortStep{{.count = padded / 2}, keys, size, step});
    }
    device_->launch(SortPieces{keys, padded, size, size});
  }
  EmbedBackward sums{count, keys, data_of(d), row_of(d_table), data_of(d_table)};
  sums.parts = data_of(parts_.make(*this, DType::f32, {sums.chunks(), 2, sums.dim}, "parts of embeddings' gradients"));
  device_->launch(sums);
  device_->launch(JoinEmbeddings{sums});
}

namespace {

/// `others` are the tensors beside x and gain that are read or written.
NormRows norm_rows(const Tensor& x, const Tensor& gain, const Tensor& inverse, std::initializer_list<Tensor> others) {
  const Index dim = row_of(x);
  return {{.rows = rows_of(x)}, dim,
          items_of(x),          items_of(gain),
          data_of(inverse),     in_eights(dim, {x, gain}) && in_eights(dim, others)};
}

}  // namespace

void CudaCompute::rms_norm(const Tensor& x, const Tensor& more, const Tensor& sum, const Tensor& gain, double eps,
                           const Tensor& h, const Tensor& inverse) {
  device_->launch(
      RmsNorm{norm_rows(x, gain, inverse, {more, sum, h}), items_of(more), items_of(sum), eps, items_of(h)});
}

void CudaCompute::rms_norm_backward(const Tensor& x, const Tensor& gain, const Tensor& inverse, const Tensor& dh,
                                    const Tensor& d, const Tensor& d_gain, const Tensor& d_items) {
  RmsNormBackward kernel{norm_rows(x, gain, inverse, {dh, d, d_items}), items_of(dh), items_of(d), items_of(d_items)};
  kernel.parts = data_of(parts_.make(*this, DType::f32, {kernel.blocks(), kernel.dim}, "parts of a gain's gradient"));
  device_->launch(kernel);
  sum_parts(kernel.parts, kernel.blocks(), true, data_of(d_gain), kernel.dim);
}

namespace {

/// `all` is the tensor of rows of all heads.
HeadRows head_rows(const Heads& heads, const RotationTables& rotations, const Tensor& all, const HeadTensors& of) {
  return {all.shape[0] * all.shape[1],
          static_cast<int>(all.shape[1]),
          static_cast<int>(heads.heads),
          static_cast<int>(heads.kv_heads),
          static_cast<int>(heads.head_dim),
          static_cast<int>(heads.width()),
          items_of(rotations.cosine),
          items_of(rotations.sine),
          static_cast<float>(1 / std::sqrt(static_cast<double>(heads.head_dim))),
          items_of(of.q),
          items_of(of.k),
          items_of(of.v),
          in_eights(heads.head_dim / 2, {rotations.cosine, rotations.sine, all, of.q, of.k, of.v})};
}

/// `through` is what the gates let through, or its gradient; `all` are the tensors that are read and written.
GatedRows gated_rows(const Tensor& gate_up, const Tensor& through, std::initializer_list<Tensor> all) {
  const Index width = row_of(through);
  return {{.rows = rows_of(through)}, items_of(gate_up), static_cast<int>(width), in_eights(width, all)};
}

/// What all kernels of attention begin with: Tiles is one of f32 or of bf16.
template <class Tiles>
Tiles tiles_of(const Heads& heads, const HeadTensors& of) {
  using Number = std::remove_const_t<std::remove_pointer_t<decltype(Tiles::q)>>;
  return {of.q.shape[0], of.q.shape[2],         heads.heads,           heads.kv_heads,       heads.head_dim,
          heads.width(), data_of<Number>(of.q), data_of<Number>(of.k), data_of<Number>(of.v)};
}

AttentionShape shape_of(const Heads& heads, const HeadTensors& of) {
  return {of.q.shape[0], of.q.shape[2], heads.heads, heads.kv_heads, heads.head_dim};
}
/// Part of the sequences: the most of which equal parts have scores of at most so many bytes, or one.
AttentionShape part_of(AttentionShape whole, Index most_bytes) {
  const Index of_one = whole.heads * whole.positions * whole.positions * static_cast<Index>(sizeof(Half));
  AttentionShape part = whole;
  while (part.sequences > 1 && (part.sequences * of_one > most_bytes || whole.sequences % part.sequences != 0))
    --part.sequences;
  return part;
}

/// Calls body.template operator()<columns>() with the least kernels that hold heads of a width.
template <class Body>
void with_columns(const Heads& heads, Body body) {
  const Index width = heads.width();
  constexpr Index side = tile_side;
  if (width <= 2 * side) return body.template operator()<2>();
  if (width <= 4 * side) return body.template operator()<4>();
  if (width <= 8 * side) return body.template operator()<8>();
  throw ModelError(
      "attention on a GPU takes heads of at most 128 numbers; give the model more heads, or narrower ones");
}

}  // namespace

void CudaCompute::split_heads(const Heads& heads, const RotationTables& rotations, const Tensor& qkv,
                              const HeadTensors& to) {
  device_->launch(SplitHeads{head_rows(heads, rotations, qkv, to), items_of(qkv)});
}

AttentionLibrary* CudaCompute::library_for(const Heads& heads, const HeadTensors& of) {
  const bool whole = heads.head_dim == heads.width() && heads.head_dim <= 128 && of.q.shape[2] % 128 == 0;
  if (of.q.dtype != DType::bf16 || !whole) return nullptr;
  return device_->attention();
}

void CudaCompute::attend(const Heads& heads, const HeadTensors& of, const Tensor& out, const Tensor& log_sums) {
  AttentionLibrary* const library = library_for(heads, of);
  if (library != nullptr && library->attend({shape_of(heads, of), data_of<Half>(of.q), data_of<Half>(of.k),
                                             data_of<Half>(of.v), data_of<Half>(out), data_of(log_sums)}))
    return;
  with_columns(heads, [&]<int columns>() {
    if (of.q.dtype == DType::bf16) {
      using Kernel = AttendBf16<columns>;
      device_->launch(Kernel{tiles_of<typename Kernel::Base>(heads, of), data_of<Half>(out), data_of(log_sums)});
    } else {
      device_->launch(Attend<columns>{tiles_of<AttentionTiles<columns>>(heads, of), items_of(out), data_of(log_sums)});
    }
  });
}

bool CudaCompute::attend_backward_by_library(const Heads& heads, const HeadTensors& of, const Tensor& out,
                                             const Tensor& log_sums, const Tensor& d_out,
                                             const HeadTensors& gradients) {
  AttentionLibrary* const library = library_for(heads, of);
  if (library == nullptr) return false;
  const AttentionShape whole = shape_of(heads, of), part = part_of(whole, library->most_score_bytes());
  const std::size_t bytes = library->attend_backward_bytes(part);
  if (bytes == 0 || bytes > 2 * static_cast<std::size_t>(library->most_score_bytes())) return false;
  const auto count = static_cast<Index>((bytes + sizeof(Half) - 1) / sizeof(Half));
  void* const scratch = scores_.make(*this, DType::bf16, {count}, "gradients of scores").data;
  const Index row_sums = whole.positions * whole.heads, numbers = row_sums * whole.head_dim;  // of a sequence
  const Index kv_numbers = numbers / whole.heads * whole.kv_heads;
  for (Index at = 0; at < whole.sequences; at += part.sequences) {
    library->attend_backward({part, data_of<Half>(of.q) + at * numbers, data_of<Half>(of.k) + at * kv_numbers,
                              data_of<Half>(of.v) + at * kv_numbers, data_of<Half>(out) + at * numbers,
                              data_of(log_sums) + at * row_sums, data_of<Half>(d_out) + at * numbers,
                              data_of<Half>(gradients.q) + at * numbers, data_of<Half>(gradients.k) + at * kv_numbers,
                              data_of<Half>(gradients.v) + at * kv_numbers, scratch});
  }
  return true;
}

void CudaCompute::attend_backward_by_kernels(const Heads& heads, const HeadTensors& of, const Tensor& out,
                                             const Tensor& log_sums, const Tensor& d_out,
                                             const HeadTensors& gradients) {
  const Index positions = of.q.shape[2], rows = of.q.shape[0] * positions;
  float* const inner = data_of(inner_.make(*this, DType::f32, {rows * heads.heads}, "inner products of heads"));
  with_columns(heads, [&]<int columns>() {
    if (of.q.dtype == DType::bf16) {
      auto* const d_heads = data_of<Half>(d_heads_.make(*this, DType::bf16, of.q.shape, "gradients of heads' outputs"));
      device_->launch(AttendBf16Inner{{.rows = rows},
                                      positions,
                                      heads.heads,
                                      heads.head_dim,
                                      heads.width(),
                                      data_of<Half>(out),
                                      data_of<Half>(d_out),
                                      inner,
                                      d_heads,
                                      in_eights(heads.head_dim, {out, d_out})});
      const auto back = [&]<class Kernel>() -> typename Kernel::Base {
        return {tiles_of<typename Kernel::Base::Base>(heads, of), d_heads, data_of(log_sums), inner};
      };
      using Keys = AttendBf16BackwardKeys<columns>;
      using Rows = AttendBf16BackwardRows<columns>;
      device_->launch(Keys{back.template operator()<Keys>(), data_of<Half>(gradients.k), data_of<Half>(gradients.v)});
      device_->launch(Rows{back.template operator()<Rows>(), data_of<Half>(gradients.q)});
    } else {
      device_->launch(
          AttendInner{{.rows = rows}, positions, heads.heads, heads.head_dim, items_of(out), data_of(d_out), inner});
      const AttentionBack<columns> back{tiles_of<AttentionTiles<columns>>(heads, of), data_of(d_out), data_of(log_sums),
                                        inner};
      device_->launch(AttendBackwardKeys<columns>{back, data_of(gradients.k), data_of(gradients.v)});
      device_->launch(AttendBackwardRows<columns>{back, data_of(gradients.q)});
    }
  });
}

void CudaCompute::attend_backward(const Heads& heads, const RotationTables& rotations, const HeadTensors& of,
                                  const Tensor& out, const Tensor& log_sums, const Tensor& d_out, const Tensor& d_qkv) {
  const auto like = [&](const Tensor& head, Buffer& memory) {
    return memory.make(*this, head.dtype, head.shape, "gradients of heads");
  };
  const HeadTensors gradients{like(of.q, head_gradients_[0]), like(of.k, head_gradients_[1]),
                              like(of.v, head_gradients_[2])};
  if (!attend_backward_by_library(heads, of, out, log_sums, d_out, gradients))
    attend_backward_by_kernels(heads, of, out, log_sums, d_out, gradients);
  device_->launch(MergeHeads{head_rows(heads, rotations, d_qkv, gradients), items_of(d_qkv)});
}

void CudaCompute::swiglu(const Tensor& gate_up, const Tensor& s) {
  device_->launch(Swiglu{gated_rows(gate_up, s, {gate_up, s}), items_of(s)});
}

void CudaCompute::swiglu_backward(const Tensor& gate_up, const Tensor& ds, const Tensor& d_gate_up, const Tensor& s) {
  device_->launch(SwigluBackward{gated_rows(gate_up, ds, {gate_up, ds, d_gate_up, s}), items_of(ds),
                                 items_of(d_gate_up), items_of(s)});
}

void CudaCompute::cross_entropy(const Tensor& logits, const Tensor& targets, float scale, const Tensor& d_logits,
                                const Tensor& sums) {
  const Index rows = targets.elements();
  if (rows == 0) return;
  auto* const results = data_of<double>(parts_.make(*this, DType::f64, {3, rows}, "losses of rows"));
  device_->launch(CrossEntropy{{.rows = rows},
                               items_of(logits),
                               data_of<std::int32_t>(targets),
                               static_cast<int>(row_of(logits)),
                               scale,
                               items_of(d_logits),
                               results,
                               in_eights(row_of(logits), {logits, d_logits})});
  device_->launch(SumRows{{.rows = 3}, results, rows, data_of<double>(sums)});
}

}  // namespace kolo::models::cuda
