#include "ops/chunk.h"

namespace kolo {

Chunk chunk_at(const Bucket& bucket, int ranks, BucketPosition position, const ChunkRule& rule) {
  const OpKind kind = bucket.signature.kind;
  const auto left_in_tensor = [&](BucketPosition at) {
    return flat_length(kind, bucket.tensors[at.tensor], ranks) - at.offset;
  };
  const auto size = static_cast<std::int64_t>(size_of(bucket.signature.dtype)) * (has_blocks(kind) ? ranks : 1);
  const std::int64_t largest = std::max<std::int64_t>(rule.largest / size, 1);
  const std::int64_t direct = std::max<std::int64_t>(rule.direct / size, 1);
  const std::size_t tensors = bucket.tensors.size();
  while (position.tensor < tensors && left_in_tensor(position) == 0) position = {position.tensor + 1, 0};

  Chunk chunk{position, 0, true, position};
  while (chunk.next.tensor < tensors && chunk.count < largest) {
    const std::int64_t left = left_in_tensor(chunk.next);
    if (chunk.count > 0 && left >= direct) break;
    if (chunk.count > 0 && left > 0) chunk.single = false;
    const std::int64_t taken = std::min(left, largest - chunk.count);
    chunk.count += taken;
    chunk.next = taken == left ? BucketPosition{chunk.next.tensor + 1, 0}
                               : BucketPosition{chunk.next.tensor, chunk.next.offset + taken};
    if (taken == left && left >= direct) break;
  }
  return chunk;
}

}  // namespace kolo
