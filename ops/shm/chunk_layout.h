#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace kolo {

/// Sizes that decide how buckets travel through memory that ranks share, in bytes; equal on all ranks.
struct ShmTuning {
  std::int64_t ring = 2 << 20;     ///< of what each rank writes for others; multiples of 64, this and the next two
  std::int64_t chunk = 256 << 10;  ///< of what a rank shows of one chunk, at most; no more than the ring
  std::int64_t hot = 4 << 10;      ///< up to this size a chunk's place is one of a few, which stay in the fastest cache
  std::int64_t in_flight = 16;     ///< chunks on their way at one time; a power of two
  std::int64_t step =
      256 << 10;  ///< of chunks, counted in each phase, that ranks move before they look at other groups
  std::int64_t whole = 16 << 10;  ///< up to this size of a bucket every rank combines all of it
  std::int64_t spills = 1 << 20;  ///< results of a bucket of this size leave a core's own cache: writing them is timed
  std::int64_t large =
      8 << 20;  ///< results of a bucket of this size are written past the cache where that has use for its room
  std::int64_t direct =
      64 << 10;  ///< from this size of a bucket on, ranks ask for direct access to each other's tensors
};

/// Sizes that suit a group of `ranks` ranks on this machine.
ShmTuning tuning_for_machine(int ranks);

/// Of a group that has done little: without a ring. All chunks are small, and few, of less than 1 KiB together for two
/// ranks.
ShmTuning small_tuning(ShmTuning tuning, int ranks);

/// Where a chunk lies in the memory of every rank; in bytes.
struct ChunkPlace {
  std::size_t begin = 0;
  bool hot = false;  ///< then the eight bytes before are a stamp, which says that the chunk is there
};

/// Where the chunks lie: calculated by each rank, equal on all.
///
/// A small chunk has one of `in_flight` hot places, in turn, and a stamp in the same cache line: who reads it waits for
/// one line to come over, not for two. A larger one lies in a ring, behind the one before; at the end of the ring it
/// begins anew. The ring is somewhat larger than the caches next to the cores: a line that a rank writes again has left
/// the reader's cache by then, and need not be taken back from there, which takes several times as long.
class ChunkLayout final {
 public:
  /// Bytes of memory that a rank needs.
  static std::size_t bytes(int ranks, const ShmTuning& tuning);

  ChunkLayout(int ranks, const ShmTuning& tuning);

  /// The place of chunk `chunk`, which has `bytes` bytes; chunks are placed in order.
  ChunkPlace place(std::uint64_t chunk, std::size_t bytes);

  /// Whether chunk `later`, which is to have `bytes` bytes, must wait until all ranks have collected chunk `earlier`.
  bool collide(std::uint64_t earlier, std::uint64_t later, std::size_t bytes) const;

 private:
  static std::size_t hot_stride(const ShmTuning& tuning);
  static std::size_t ring_begin(const ShmTuning& tuning);
  static std::size_t ring_bytes(int ranks, const ShmTuning& tuning);
  bool is_hot(std::size_t bytes) const { return bytes <= hot_; }
  std::size_t turn_of(std::uint64_t chunk) const { return static_cast<std::size_t>(chunk) & (begins_.size() - 1); }
  std::uint64_t begin_of(std::size_t bytes) const;

  std::size_t hot_;
  std::size_t hot_stride_;
  std::size_t ring_begin_;
  std::size_t ring_;
  std::uint64_t end_ = 0;              // of the last chunk in the ring, as if that had no end
  std::vector<std::uint64_t> begins_;  // of the last chunks
};

}  // namespace kolo
