#pragma once

#include <optional>

#include <kolo/backend.h>

#include "ops/bucket.h"
#include "ops/shm/board.h"
#include "ops/shm/transfer.h"

namespace kolo {

/// A small operation of one tensor, to or from a root, in one hot chunk: as a ShmJob of its kind, but a rank that need
/// not wait for another one does all of it at once. What others see is the same.
struct ShmSmall {
  /// None unless the operation is one.
  static std::optional<ShmSmall> of(const Bucket& bucket, const ShmBoard& board);

  /// Of the chunk, in each rank's memory.
  std::size_t bytes() const { return part_bytes * static_cast<std::size_t>(parts); }
  /// Puts what this rank has for others into its memory at `place`.
  void show(const ShmBoard& board, const ChunkPlace& place) const;
  /// Writes this rank's result, from the others' memory and its own input.
  void collect(const ShmBoard& board, const ChunkPlace& place) const;

  const Bucket& bucket;
  ShmFlow flow{};
  int parts = 1;  ///< as in ShmJob
  std::size_t part_bytes = 0;
  std::int64_t block = 0;  ///< elements of each rank's block, if all are as long; else 0

 private:
  const BucketTensor& tensor() const { return bucket.tensors.front(); }
  ElementRange in_block(int me, int to, int ranks) const;
  ElementRange out_block(int me, int from, int ranks) const;
  void combine(const ShmBoard& board, const ChunkPlace& place) const;
};

}  // namespace kolo
