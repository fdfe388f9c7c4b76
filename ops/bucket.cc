#include "ops/bucket.h"

namespace kolo {

std::int64_t Bucket::elements() const {
  std::int64_t sum = 0;
  for (const BucketTensor& tensor : tensors) sum += tensor.out.elements();
  return sum;
}

BucketPosition position_at(const Bucket& bucket, std::int64_t index) {
  return for_each_piece(bucket, {}, index, [](const Piece&) {});
}

Slice slice_of(std::int64_t elements, std::size_t element_bytes, int parts, int part) {
  const auto line = static_cast<std::int64_t>(64 / element_bytes);
  const std::int64_t lines = elements / line + (elements % line != 0);
  const std::int64_t length = (lines / parts + (lines % parts != 0)) * line;
  return {std::min(part * length, elements), std::min((part + 1) * length, elements)};
}

}  // namespace kolo
