#include "ops/bucket.h"

#include <algorithm>

namespace kolo {

std::int64_t Bucket::elements() const {
  std::int64_t sum = 0;
  for (const BucketTensor& tensor : tensors) sum += tensor.in.elements();
  return sum;
}

namespace {

/// Rows of the block that rank `from` has for rank `to`.
std::int64_t rows_between(OpKind kind, const BucketTensor& tensor, int ranks, int from, int to) {
  if (!tensor.rows) return kind == OpKind::all_to_all ? tensor.in.shape[0] / ranks : tensor.in.shape[0];
  return (*tensor.rows)[static_cast<std::size_t>(kind == OpKind::all_to_all ? from * ranks + to : from)];
}

/// The block after `before` others, which `rows(i)` rows have, in elements.
template <class Rows>
Slice block_after(int before, std::int64_t row, Rows rows) {
  std::int64_t begin = 0;
  for (int i = 0; i < before; ++i) begin += rows(i);
  return {begin * row, (begin + rows(before)) * row};
}

}  // namespace

std::int64_t row_elements(const Shape& shape) {
  std::int64_t product = 1;
  for (int dim = 1; dim < shape.dims(); ++dim) product *= shape[dim];
  return product;
}

Slice in_block_of_rank(OpKind kind, const BucketTensor& tensor, int ranks, int me, int peer) {
  const Shape& shape = tensor.in.shape;
  switch (kind) {
    case OpKind::all_gather:
    case OpKind::gather: return {0, rows_between(kind, tensor, ranks, me, peer) * row_elements(shape)};
    case OpKind::all_to_all:
      return block_after(peer, row_elements(shape), [&](int to) { return rows_between(kind, tensor, ranks, me, to); });
    case OpKind::reduce_scatter:
    case OpKind::scatter: {
      const RowRange rows = rows_of_rank(shape[0], ranks, peer);
      return {rows.begin * row_elements(shape), rows.end * row_elements(shape)};
    }
    default: return {0, shape.elements()};
  }
}

Slice out_block_of_rank(OpKind kind, const BucketTensor& tensor, int ranks, int me, int peer) {
  const Shape& shape = tensor.in.shape;
  switch (kind) {
    case OpKind::all_gather:
    case OpKind::gather:
    case OpKind::all_to_all:
      return block_after(peer, row_elements(shape),
                         [&](int from) { return rows_between(kind, tensor, ranks, from, me); });
    case OpKind::reduce_scatter:
    case OpKind::scatter: return {0, rows_of_rank(shape[0], ranks, me).count() * row_elements(shape)};
    default: return {0, shape.elements()};
  }
}

std::int64_t longest_block(OpKind kind, const BucketTensor& tensor, int ranks) {
  if (tensor.rows) return *std::max_element(tensor.rows->begin(), tensor.rows->end()) * row_elements(tensor.in.shape);
  return in_block(kind, tensor, ranks, 0, 0).count();  // rank 0's is the longest
}

BucketPosition position_at(const Bucket& bucket, int ranks, std::int64_t index) {
  return for_each_piece(bucket, ranks, {}, index, [](const Piece&) {});
}

}  // namespace kolo
