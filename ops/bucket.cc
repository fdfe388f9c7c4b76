#include "ops/bucket.h"

#include <algorithm>

namespace kolo {

void throw_other_token() {
  throw Error(ErrorCode::mismatch, "the ranks of the group call different operations at the same place");
}

std::int64_t Bucket::elements() const {
  std::int64_t sum = 0;
  for (const BucketTensor& tensor : tensors) sum += tensor.in.elements();
  return sum;
}

std::int64_t row_elements(const Shape& shape) {
  std::int64_t product = 1;
  for (int dim = 1; dim < shape.dims(); ++dim) product *= shape[dim];
  return product;
}

namespace {

/// Rows of the block that rank `from` has for rank `to`, where every rank says how many rows its blocks have.
std::int64_t rows_between(OpKind kind, const BucketTensor& tensor, int ranks, int from, int to) {
  const bool one_for_each = traits(kind).in == Rows::blocks;
  if (!tensor.rows) return tensor.in.shape[0] / (one_for_each ? ranks : 1);
  return (*tensor.rows)[static_cast<std::size_t>(one_for_each ? from * ranks + to : from)];
}

/// The rows that are dealt to a rank, in elements.
ElementRange dealt_to(int rank, const Shape& shape, int ranks) {
  const RowRange rows = rows_of_rank(shape[0], ranks, rank);
  return {rows.begin * row_elements(shape), rows.end * row_elements(shape)};
}

/// The block after `before` others, which `rows(i)` rows have, in elements.
template <class Rows>
ElementRange block_after(int before, std::int64_t row, Rows rows) {
  std::int64_t begin = 0;
  for (int i = 0; i < before; ++i) begin += rows(i);
  return {begin * row, (begin + rows(before)) * row};
}

}  // namespace

ElementRange in_block_of_rank(OpKind kind, const BucketTensor& tensor, int ranks, int me, int peer) {
  const std::int64_t row = row_elements(tensor.in.shape);
  switch (traits(kind).in) {
    case Rows::own: return {0, rows_between(kind, tensor, ranks, me, peer) * row};
    case Rows::blocks: return block_after(peer, row, [&](int to) { return rows_between(kind, tensor, ranks, me, to); });
    default: return dealt_to(peer, tensor.in.shape, ranks);
  }
}

ElementRange out_block_of_rank(OpKind kind, const BucketTensor& tensor, int ranks, int me, int peer) {
  if (traits(kind).out == Rows::dealt) return {0, dealt_to(me, tensor.in.shape, ranks).count()};
  return block_after(peer, row_elements(tensor.in.shape),
                     [&](int from) { return rows_between(kind, tensor, ranks, from, me); });
}

std::int64_t longest_block(OpKind kind, const BucketTensor& tensor, int ranks) {
  if (tensor.rows) return *std::max_element(tensor.rows->begin(), tensor.rows->end()) * row_elements(tensor.in.shape);
  return in_block(kind, tensor, ranks, 0, 0).count();  // rank 0's is the longest
}

BucketPosition position_at(const Bucket& bucket, int ranks, std::int64_t index) {
  return for_each_segment(bucket, ranks, {}, index, [](const Segment&) {});
}

}  // namespace kolo
