#pragma once

#include <cstdint>

#include "ops/bucket.h"

namespace kolo {

/// How a bucket is cut for the wire. Both in bytes.
struct SegmentRule {
  std::int64_t largest = 4 << 20;  ///< of a segment; a multiple of 64, below 2^30 so that counts and offsets fit in int
  std::int64_t direct = 1 << 15;   ///< from this size on (what is left of) a tensor travels alone, without being packed
};

/// Consecutive elements of the flattened bucket that travel together.
struct Segment {
  BucketPosition position;
  std::int64_t count = 0;  ///< in elements; 0 at the end of the bucket
  bool single = false;     ///< whether they lie in one tensor, contiguously
  BucketPosition next;     ///< where the following segment begins
};

/// The segment at `position`, a function of the tensors' shapes only, hence equal on all ranks. A big tensor is cut
/// into segments of its own, which need no packing; neighbouring small ones (and the small rest of a big one) share a
/// segment.
Segment segment_at(const Bucket& bucket, BucketPosition position, const SegmentRule& rule);

}  // namespace kolo
