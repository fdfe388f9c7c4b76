#include "ops/segment.h"

namespace kolo {
namespace {

std::int64_t left_in_tensor(const Bucket& bucket, BucketPosition position) {
  return bucket.tensors[position.tensor].out.elements() - position.offset;
}

}  // namespace

Segment segment_at(const Bucket& bucket, BucketPosition position, const SegmentRule& rule) {
  const auto size = static_cast<std::int64_t>(size_of(bucket.signature.dtype));
  const std::int64_t largest = rule.largest / size;
  const std::int64_t direct = rule.direct / size;
  const std::size_t tensors = bucket.tensors.size();
  while (position.tensor < tensors && left_in_tensor(bucket, position) == 0) position = {position.tensor + 1, 0};

  Segment segment{position, 0, true, position};
  while (segment.next.tensor < tensors && segment.count < largest) {
    const std::int64_t left = left_in_tensor(bucket, segment.next);
    if (segment.count > 0 && left >= direct) break;
    if (segment.count > 0 && left > 0) segment.single = false;
    const std::int64_t taken = std::min(left, largest - segment.count);
    segment.count += taken;
    segment.next = taken == left ? BucketPosition{segment.next.tensor + 1, 0}
                                 : BucketPosition{segment.next.tensor, segment.next.offset + taken};
    if (taken == left && left >= direct) break;
  }
  return segment;
}

}  // namespace kolo
