#include "ops/bucket.h"

namespace kolo {

std::int64_t Bucket::elements() const {
  std::int64_t sum = 0;
  for (const BucketTensor& tensor : tensors) sum += tensor.in.elements();
  return sum;
}

Slice block_of(OpKind kind, const Shape& shape, int ranks, int rank) {
  const std::int64_t elements = shape.elements();
  switch (kind) {
    case OpKind::all_gather:
    case OpKind::gather: return {rank * elements, (rank + 1) * elements};
    case OpKind::all_to_all: return {rank * (elements / ranks), (rank + 1) * (elements / ranks)};
    case OpKind::reduce_scatter:
    case OpKind::scatter: {
      if (elements == 0) return {};
      const std::int64_t row = elements / shape[0];
      const RowRange rows = rows_of_rank(shape[0], ranks, rank);
      return {rows.begin * row, rows.end * row};
    }
    default: return {0, elements};
  }
}

std::int64_t flat_length(OpKind kind, const Shape& shape, int ranks) {
  return block_of(kind, shape, ranks, 0).count();
}

BucketPosition position_at(const Bucket& bucket, int ranks, std::int64_t index) {
  return for_each_piece(bucket, ranks, {}, index, [](const Piece&) {});
}

Slice slice_of(std::int64_t elements, std::size_t element_bytes, int parts, int part) {
  const auto line = static_cast<std::int64_t>(64 / element_bytes);
  const std::int64_t lines = elements / line + (elements % line != 0);
  const std::int64_t length = (lines / parts + (lines % parts != 0)) * line;
  return {std::min(part * length, elements), std::min((part + 1) * length, elements)};
}

}  // namespace kolo
