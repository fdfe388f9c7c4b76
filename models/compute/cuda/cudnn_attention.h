#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "models/compute/cuda/attentions.h"
#include "models/compute/cuda/cudnn_descriptors.h"

// Attention as graphs of operations, in the form by which cuDNN knows that it has a kernel for it: that of NVIDIA's
// "cuDNN Frontend" (scaled dot product attention). The pass back keeps the gradients of scores in scratch memory:
// adding queries' gradients from several blocks at once, the library's other way, gives other bits in every run.

namespace kolo::models::cuda::cudnn {

/// Tensors that are given when a plan runs.
enum class Given : std::int64_t { q, k, v, out, log_sums, d_out, d_q, d_k, d_v, inner, scale, unit, hidden };

using Extents = std::array<std::int64_t, 4>;

Extents dense(const Extents& of) {
  return {of[1] * of[2] * of[3], of[2] * of[3], of[3], 1};
}
Extents transposed(const Extents& of) {
  return {of[0], of[1], of[3], of[2]};
}

/// A graph of operations; what passes between them has no memory.
class Graph {
 public:
  Graph(const Functions& functions, const AttentionShape& shape)
      : descriptors_(functions),
        rows_{shape.sequences, shape.heads, shape.positions, shape.head_dim},
        kv_rows_{shape.sequences, shape.kv_heads, shape.positions, shape.head_dim},
        scores_{shape.sequences, shape.heads, shape.positions, shape.positions},
        row_sums_{shape.sequences, shape.heads, shape.positions, 1} {}

  void forward() {
    const Node masked = masked_scores(q(), nullptr);
    const Node largest = reduced(CUDNN_REDUCE_TENSOR_MAX, masked, passing(CUDNN_DATA_FLOAT, row_sums_));
    const Node weights = scores(CUDNN_POINTWISE_EXP, scores(CUDNN_POINTWISE_SUB, masked, largest));
    const Node sums = reduced(CUDNN_REDUCE_TENSOR_ADD, weights, passing(CUDNN_DATA_FLOAT, row_sums_));
    const Node logarithms = pointwise(CUDNN_POINTWISE_LOG, sums, nullptr, passing(CUDNN_DATA_FLOAT, row_sums_));
    pointwise(CUDNN_POINTWISE_ADD, largest, logarithms, log_sums());
    const Node shares = pointwise(CUDNN_POINTWISE_DIV, weights, sums, passing(CUDNN_DATA_BFLOAT16, scores_));
    multiplied(shares, given(Given::v, CUDNN_DATA_BFLOAT16, kv_rows_, dense(kv_rows_)), by_position(Given::out));
  }

  void backward() {
    const Node d_out = by_position(Given::d_out), heads_q = q(), heads_k = transposed_kv(Given::k);
    const Node inner = given(Given::inner, CUDNN_DATA_FLOAT, row_sums_, dense(row_sums_));
    const Node products =
        pointwise(CUDNN_POINTWISE_MUL, d_out, by_position(Given::out), passing(CUDNN_DATA_FLOAT, rows_));
    const Node sums = reduced(CUDNN_REDUCE_TENSOR_ADD, products, passing(CUDNN_DATA_FLOAT, row_sums_));
    pointwise(CUDNN_POINTWISE_MUL, sums, number(Given::unit), inner);
    const Node shares = scores(CUDNN_POINTWISE_EXP, masked_scores(heads_q, heads_k));
    to_kv(shares, d_out, Given::d_v);
    const Node d_shares = multiplied(d_out, transposed_kv(Given::v), passing(CUDNN_DATA_FLOAT, scores_));
    const Node d_scores =
        scores(CUDNN_POINTWISE_MUL, scores(CUDNN_POINTWISE_MUL, scores(CUDNN_POINTWISE_SUB, d_shares, inner), shares),
               scale());
    to_kv(d_scores, heads_q, Given::d_k);
    multiplied(d_scores, reshaped(heads_k, passing(CUDNN_DATA_FLOAT, kv_rows_)),
               given(Given::d_q, CUDNN_DATA_BFLOAT16, rows_, dense(rows_)));
  }

  Descriptors& descriptors() { return descriptors_; }
  const std::vector<Node>& operations() const { return operations_; }

 private:
  Node tensor(std::int64_t id, cudnnDataType_t type, const Extents& extents, const Extents& strides, bool passing,
              bool by_value = false) {
    constexpr std::int64_t aligned = 16;
    const Node node = descriptors_.make(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    descriptors_.set(node, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, id);
    descriptors_.set(node, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, type);
    descriptors_.set(node, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, std::span<const std::int64_t>(extents));
    descriptors_.set(node, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, std::span<const std::int64_t>(strides));
    descriptors_.set(node, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, aligned);
    descriptors_.set(node, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, passing);
    descriptors_.set(node, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, by_value);
    return descriptors_.finished(node);
  }
  Node given(Given which, cudnnDataType_t type, const Extents& extents, const Extents& strides) {
    return tensor(static_cast<std::int64_t>(which), type, extents, strides, false);
  }
  Node passing(cudnnDataType_t type, const Extents& extents) {
    return tensor(next_id_++, type, extents, dense(extents), true);
  }
  Node number(Given which) {
    constexpr Extents one{1, 1, 1, 1};
    return tensor(static_cast<std::int64_t>(which), CUDNN_DATA_FLOAT, one, one, false, true);
  }
  Node scale() {
    if (scale_ == nullptr) scale_ = number(Given::scale);
    return scale_;
  }
  Node q() { return given(Given::q, CUDNN_DATA_BFLOAT16, rows_, dense(rows_)); }
  /// Keys or values, as the right side of a product.
  Node transposed_kv(Given which) {
    return given(which, CUDNN_DATA_BFLOAT16, transposed(kv_rows_), transposed(dense(kv_rows_)));
  }
  /// Rows of all heads of one position after the other.
  Node by_position(Given which) {
    const auto& [sequences, heads, positions, head_dim] = rows_;
    return given(which, CUDNN_DATA_BFLOAT16, rows_, {heads * positions * head_dim, head_dim, heads * head_dim, 1});
  }
  Node log_sums() { return given(Given::log_sums, CUDNN_DATA_FLOAT, row_sums_, dense(row_sums_)); }

  Node operation(cudnnBackendDescriptorType_t type) { return operations_.emplace_back(descriptors_.make(type)); }

  /// Writes `y`, which is returned.
  Node pointwise(cudnnPointwiseMode_t mode, Node x, Node b, Node y, Node t = nullptr, std::int64_t axis = -1) {
    const Node how = descriptors_.make(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    descriptors_.set(how, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, mode);
    descriptors_.set(how, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
    if (axis >= 0) descriptors_.set(how, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, axis);
    const Node done = operation(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    descriptors_.set(done, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, descriptors_.finished(how));
    descriptors_.set(done, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
    if (b != nullptr) descriptors_.set(done, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b);
    if (t != nullptr) descriptors_.set(done, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, t);
    descriptors_.set(done, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y);
    descriptors_.finished(done);
    return y;
  }
  Node scores(cudnnPointwiseMode_t mode, Node x, Node b = nullptr) {
    return pointwise(mode, x, b, passing(CUDNN_DATA_FLOAT, scores_));
  }
  Node multiplied(Node a, Node b, Node c) {
    const Node how = descriptors_.make(CUDNN_BACKEND_MATMUL_DESCRIPTOR);
    descriptors_.set(how, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
    const Node done = operation(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    descriptors_.set(done, CUDNN_ATTR_OPERATION_MATMUL_DESC, descriptors_.finished(how));
    descriptors_.set(done, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a);
    descriptors_.set(done, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b);
    descriptors_.set(done, CUDNN_ATTR_OPERATION_MATMUL_CDESC, c);
    descriptors_.finished(done);
    return c;
  }
  Node reduced(cudnnReduceTensorOp_t op, Node x, Node y) {
    const Node how = descriptors_.make(CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
    descriptors_.set(how, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, op);
    descriptors_.set(how, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
    const Node done = operation(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
    descriptors_.set(done, CUDNN_ATTR_OPERATION_REDUCTION_DESC, descriptors_.finished(how));
    descriptors_.set(done, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x);
    descriptors_.set(done, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y);
    descriptors_.finished(done);
    return y;
  }
  Node reshaped(Node x, Node y) {
    const Node done = operation(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
    descriptors_.set(done, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x);
    descriptors_.set(done, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y);
    descriptors_.finished(done);
    return y;
  }

  /// Scores; for the pass back, which has made the keys, less the logarithms of their sums.
  Node masked_scores(Node heads_q, Node heads_k) {
    const bool back = heads_k != nullptr;
    Node all = multiplied(heads_q, back ? heads_k : transposed_kv(Given::k), passing(CUDNN_DATA_FLOAT, scores_));
    all = scores(CUDNN_POINTWISE_MUL, all, scale());
    if (back) all = scores(CUDNN_POINTWISE_SUB, all, log_sums());
    const auto index = [&](std::int64_t axis) {
      return pointwise(CUDNN_POINTWISE_GEN_INDEX, all, nullptr, passing(CUDNN_DATA_INT32, scores_), nullptr, axis);
    };
    const Node row = index(2), column = index(3);
    const Node seen = pointwise(CUDNN_POINTWISE_CMP_GE, row, column, passing(CUDNN_DATA_BOOLEAN, scores_));
    return pointwise(CUDNN_POINTWISE_BINARY_SELECT, all, number(Given::hidden), passing(CUDNN_DATA_FLOAT, scores_),
                     seen);
  }
  /// The product of transposed scores and rows of all heads: a gradient of keys or values, summed over the heads that
  /// share them.
  void to_kv(Node of_scores, Node of_rows, Given which) {
    const Extents columns = transposed(dense(scores_));
    const Node turned =
        reshaped(of_scores, tensor(next_id_++, CUDNN_DATA_BFLOAT16, transposed(scores_), columns, true));
    const Node result = given(which, CUDNN_DATA_BFLOAT16, kv_rows_, dense(kv_rows_));
    if (kv_rows_ == rows_) {
      multiplied(turned, of_rows, result);
    } else {
      reduced(CUDNN_REDUCE_TENSOR_ADD, multiplied(turned, of_rows, passing(CUDNN_DATA_BFLOAT16, rows_)), result);
    }
  }

  Descriptors descriptors_;
  Extents rows_, kv_rows_, scores_, row_sums_;
  Node scale_ = nullptr;
  std::int64_t next_id_ = 100;  // beyond those of Given
  std::vector<Node> operations_;
};

}  // namespace kolo::models::cuda::cudnn
