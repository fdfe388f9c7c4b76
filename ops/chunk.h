#pragma once

#include <cstdint>

#include "ops/bucket.h"

namespace kolo {

/// How a bucket is cut for the wire. Both in bytes, of all ranks' blocks together where ranks have blocks.
struct ChunkRule {
  std::int64_t largest = 4 << 20;  ///< of a chunk; a multiple of 64, below 2^30 so that counts and offsets fit in int
  std::int64_t direct = 1 << 15;   ///< from this size on (what is left of) a tensor travels alone, without being packed
};

/// Consecutive elements of the flattened bucket that travel together.
struct Chunk {
  BucketPosition position;
  std::int64_t count = 0;  ///< in elements; 0 at the end of the bucket
  bool single = false;     ///< whether they lie in one tensor (in each block of it), contiguously
  BucketPosition next;     ///< where the following chunk begins
};

/// The chunk at `position`, a function of the tensors' shapes and of the number of ranks only, hence equal on all
/// ranks. At least one element, even if `ranks` of them exceed the rule. A big tensor is cut into chunks of its own,
/// which need no packing; neighbouring small ones (and the small rest of a big one) share a chunk.
Chunk chunk_at(const Bucket& bucket, int ranks, BucketPosition position, const ChunkRule& rule);

}  // namespace kolo
