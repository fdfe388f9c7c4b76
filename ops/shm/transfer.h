#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <kolo/backend.h>

#include "ops/bucket.h"
#include "ops/kernels/copy.h"
#include "ops/kernels/reduce.h"
#include "ops/shm/board.h"
#include "ops/shm/choice.h"
#include "ops/shm/peer_tensors.h"

namespace kolo {

class ShmQuestion;
class ShmTransfer;

/// How the chunks of one kind of operation travel: what a rank does in each phase (see ShmBoard).
///
/// No two ranks write to the same memory, and what a rank's tensors are read for is read before they are written,
/// whoever works in place (see BucketTensor).
struct ShmMethod {
  // Null: no rank does anything in this phase.
  void (*pack)(ShmTransfer&);     ///< copies what peers need into this rank's memory
  void (*combine)(ShmTransfer&);  ///< all have packed: reduces this rank's part of the result for others
  void (*collect)(ShmTransfer&);  ///< those it reads from have combined, or packed: writes the output
  bool has_slots = true;          ///< chunks have a place in every rank's memory
};

/// Who shows something to whom: every rank to every other, or one of the two sides is the root.
struct ShmFlow {
  enum class Shape : std::uint8_t { all, from_root, to_root };
  Shape shape = Shape::all;
  int root = 0;

  bool shows(int rank) const { return shape == Shape::all || (rank == root) == (shape == Shape::from_root); }
  bool reads(int rank) const { return shape == Shape::all || (rank == root) == (shape == Shape::to_root); }
};

/// An operation on this rank: its bucket, and how that is cut. Equal on all ranks but for the memory.
struct ShmJob {
  ShmJob(const Bucket& bucket, int ranks, const ShmTuning& tuning);

  /// When it is this job's turn: into chunks of the ring, of choice.bytes.
  void choose(const ShmChoice& choice);

  /// Of the next chunk: elements of the flattened list; bytes in each rank's memory, in parts of `part_bytes` for the
  /// ranks where they get different ones.
  std::int64_t next_count() const { return std::min(left, chunk_elements); }
  std::size_t part_bytes() const;
  std::size_t next_bytes() const;
  /// Upper bound of the bytes of the next chunk's results that are timed.
  std::size_t next_timed_bytes() const;

  /// ShmAccess's answer; null: through the ring. Nothing else is asked.
  void answer(const ShmChoice& choice, std::unique_ptr<PeerTensors> found);
  /// There was an answer, and there may be more to ask.
  void ask_again() { asks = Asks::undecided; }

  /// Whether the ranks have something to ask each other: undecided until the job's turn, then no, or with the next
  /// chunk, or waiting for the answer.
  enum class Asks : std::uint8_t { undecided, no, next, waits };

  const Bucket& bucket;
  Reduction reduction;
  std::int64_t left = 0;            ///< elements of the flattened list that no chunk has yet
  std::int64_t all_bytes = 0;       ///< of the largest tensors, input or output, that a rank has
  int parts = 1;                    ///< of a chunk in a rank's memory
  std::int64_t chunk_elements = 1;  ///< of the flattened list
  bool whole = false;               ///< every rank that receives a result reduces all of it
  bool large = false;               ///< results are written past the cache, unless they are in-place
  bool in_place = false;            ///< some results of a job that may ask, or is large, are
  bool times_results = false;       ///< where they are best written is found out
  bool pushes = false;              ///< results are written by the rank that has what is copied
  const ShmMethod* method = nullptr;
  ShmFlow flow{};
  Asks asks = Asks::undecided;
  ShmQuestion* question = nullptr;
  std::optional<std::uint64_t> number{};        ///< of a job with a token, once it has begun: among those that have one
  std::unique_ptr<PeerTensors> peer_tensors{};  ///< null: all goes through the ring
  ShmClass job_class{};
  ShmChoice choice{};
  bool settled = true;                            ///< see ShmChooser, also of the next two
  std::uint64_t trial = 0;                        ///< 0: it is none
  std::chrono::steady_clock::time_point begun{};  ///< of one that may ask
  BucketPosition next{};                          ///< where the next chunk begins
  bool complete = false;
};

/// Of a chunk in a rank's memory: kinds that send each rank something else have a part for every rank.
int shm_parts(OpKind kind, int ranks);
/// `whole` as in ShmJob.
ShmFlow shm_flow(const Signature& signature, bool whole);
/// The method of a kind of operation; null if there is none. `whole` as in ShmJob.
const ShmMethod* shm_method(OpKind kind, bool whole);

extern const ShmMethod shm_all_reduce, shm_all_reduce_whole, shm_reduce, shm_reduce_whole, shm_reduce_scatter,
    shm_broadcast, shm_all_gather, shm_gather, shm_scatter, shm_all_to_all, shm_all_reduce_reading, shm_reduce_reading,
    shm_reduce_scatter_reading;

/// A phase that several methods have: puts what this rank has for each other rank into that rank's part of its memory.
void shm_pack_parts(ShmTransfer& transfer);

/// One chunk on its way, as this rank sees it. Serves one chunk after the other.
class ShmTransfer final {
 public:
  explicit ShmTransfer(ShmBoard& board) : board_(board), sources_(static_cast<std::size_t>(board.ranks())) {}

  /// Takes the job's next chunk, which lies at `place` in every rank's memory.
  ///
  /// shows_in    where this rank writes what others read there
  /// results_in  where results are written, of a job that times that
  void begin(ShmJob& job, std::uint64_t number, ChunkPlace place, CopyTo shows_in, CopyTo results_in);

  /// Of a chunk that no job has, only this is known.
  void stand_for(const ShmFlow& flow) { flow_ = flow; }

  /// Publishes that this rank has packed its part, if another rank reads it.
  void show_packed();
  /// Whether every rank from which this one may read has packed its part.
  bool all_packed() const;

  ShmJob& job() const { return *job_; }
  const ShmMethod& method() const { return *method_; }
  bool last() const { return last_; }
  bool hot() const { return place_.hot; }
  /// Where no chunk is copied it is combined in pieces. Returns whether there is one more.
  bool next_piece() { return ++piece_ < pieces_; }
  std::size_t put_bytes() const { return put_bytes_; }
  std::size_t written_bytes() const { return written_bytes_; }
  /// As ShmJob::next_timed_bytes(), of this chunk.
  std::size_t timed_bytes() const { return job_->times_results ? static_cast<std::size_t>(bytes()) : 0; }
  CopyTo results_in() const { return results_in_; }

  /// Who shows something to whom in this chunk.
  const ShmFlow& flow() const { return flow_; }
  /// reduce on a non-root rank: done after combining.
  bool only_helps() const { return signature().kind == OpKind::reduce && !is_root() && !job_->peer_tensors; }

  // ---- for methods: what travels ------------------------------------------------------------------------------------

  const Signature& signature() const { return job_->bucket.signature; }
  std::size_t index_of(const BucketTensor& tensor) const {
    return static_cast<std::size_t>(&tensor - job_->bucket.tensors.data());
  }
  int rank() const { return board_.rank(); }
  int ranks() const { return board_.ranks(); }
  bool is_root() const { return signature().root == rank(); }
  bool present(int rank) const {
    return job_->bucket.absent.empty() || !std::ranges::binary_search(job_->bucket.absent, rank);
  }
  std::size_t element_bytes() const { return size_of(signature().dtype); }

  /// Whether results that are this rank's own input are where they belong.
  bool in_place() const {
    return std::ranges::all_of(job_->bucket.tensors,
                               [](const BucketTensor& tensor) { return tensor.in.data == tensor.out.data; });
  }

  /// Where the chunk begins, and how many elements it has; of every block, where ranks have blocks.
  BucketPosition position() const { return position_; }
  std::int64_t count() const { return count_; }
  std::int64_t bytes() const { return count_ * static_cast<std::int64_t>(element_bytes()); }
  /// What combining a piece counts, in bytes of chunks: in direct access all comes from memory, and goes there.
  std::int64_t piece_work() const { return bytes() / pieces_ * (job_->peer_tensors ? 2 : 1); }
  /// The elements of the chunk that a rank combines for all.
  ElementRange slice(int rank) const { return slice_of(count_, element_bytes(), ranks(), rank); }

  /// The place of the chunk in a rank's memory: its slot.
  std::byte* slot(int rank) const { return board_.memory(rank) + place_.begin; }
  /// Elements of another rank's input: in its slot, from `place` on, or where ranks reach each other's tensors.
  const std::byte* input_of(int rank, const BucketTensor& tensor, std::int64_t offset, std::int64_t count,
                            std::size_t place) const {
    if (!job_->peer_tensors) return slot(rank) + place;
    return job_->peer_tensors->input(rank, index_of(tensor), static_cast<std::size_t>(offset) * element_bytes(),
                                     static_cast<std::size_t>(count) * element_bytes());
  }
  /// Where the part for `to` begins, in a slot that has a part of the chunk for every rank.
  std::size_t part(int to) const { return static_cast<std::size_t>(to) * part_bytes_; }

  /// Calls visit(tensor, offset, count, place) for the segments of the elements `slice` of the chunk, which begin at
  /// `from`; `place` is that of the segment in the chunk, in bytes. Returns where the next slice begins.
  template <class Visit>
  BucketPosition for_each_segment(BucketPosition from, ElementRange slice, Visit visit) const {
    std::int64_t place = slice.begin;
    return kolo::for_each_segment(job_->bucket, ranks(), from, slice.count(), [&](const Segment& segment) {
      visit(job_->bucket.tensors[segment.tensor], segment.offset, segment.count,
            static_cast<std::size_t>(place) * element_bytes());
      place += segment.count;
    });
  }

  /// The same for this piece of the slice that this rank combines.
  template <class Visit>
  void for_each_own_segment(Visit visit) const {
    for_each_segment_of_piece(slice(rank()), visit);
  }

  /// The same for this piece of the chunk's elements of a block, which may lack the last ones: in_block() or
  /// out_block() with `peer`. `offset` counts from the begin of the tensor.
  template <class BlockOf, class Visit>
  void for_each_segment_of_block(BlockOf block_of, int peer, Visit visit) const {
    for_each_segment_of_piece(
        {0, count_}, [&](const BucketTensor& tensor, std::int64_t offset, std::int64_t count, std::size_t place) {
          const ElementRange block = block_of(signature().kind, tensor, ranks(), rank(), peer);
          const std::int64_t held = std::min(count, block.count() - offset);
          if (held > 0) visit(tensor, block.begin + offset, held, place);
        });
  }

  /// By how many elements what rank `from` has for rank `to` lies farther in the output of `to` than in its own input.
  std::int64_t shift(const BucketTensor& tensor, int from, int to) const {
    const OpKind kind = signature().kind;
    return out_block(kind, tensor, ranks(), to, from).begin - in_block(kind, tensor, ranks(), from, to).begin;
  }

  // ---- for methods: moving bytes ------------------------------------------------------------------------------------

  /// Copies elements into this rank's slot.
  void put(std::byte* to, const Tensor& from, std::int64_t offset, std::int64_t count);

  /// Copies elements to their place in the output, unless they are there already.
  void write(const BucketTensor& tensor, std::int64_t offset, std::int64_t count, const std::byte* from) {
    write_to(address(tensor.out, offset), tensor, count, from);
  }
  /// The same to a place in the output of any rank.
  void write_to(std::byte* to, const BucketTensor& tensor, std::int64_t count, const std::byte* from);

  /// Combines elements of all present ranks, in rank order: of this rank's input, and of the others' what source(rank)
  /// gives. Writes the result to `shown`, for others, and to `out`; either may be null.
  template <class Source>
  void combine(const BucketTensor& tensor, std::int64_t offset, std::int64_t count, Source source, std::byte* shown,
               std::byte* out) {
    std::size_t sources = 0;
    for (int other = 0; other < ranks(); ++other) {
      if (present(other)) sources_[sources++] = other == rank() ? address(tensor.in, offset) : source(other);
    }
    reduce_sources(sources, count, shown, out, streams(tensor));
  }

 private:
  void begin_asking();
  template <class Visit>
  void for_each_segment_of_piece(ElementRange range, Visit visit) const {
    const ElementRange part = slice_of(range.count(), element_bytes(), pieces_, piece_);
    const ElementRange piece{range.begin + part.begin, range.begin + part.end};
    for_each_segment(kolo::for_each_segment(job_->bucket, ranks(), position_, piece.begin, [](const Segment&) {}),
                     piece, visit);
  }
  bool streams(const BucketTensor& tensor) const;
  void reduce_sources(std::size_t sources, std::int64_t count, std::byte* shown, std::byte* out, bool streams) const;

  ShmBoard& board_;
  ShmJob* job_ = nullptr;
  const ShmMethod* method_ = nullptr;
  ShmFlow flow_;  // valid also when the job is complete, and gone
  std::uint64_t number_ = 0;
  ChunkPlace place_;
  CopyTo shows_in_ = CopyTo::cache;
  CopyTo results_in_ = CopyTo::cache;
  std::size_t put_bytes_ = 0;      // to this rank's slot
  std::size_t written_bytes_ = 0;  // to outputs
  BucketPosition position_;
  std::int64_t count_ = 0;
  std::size_t part_bytes_ = 0;
  int pieces_ = 1, piece_ = 0;
  bool last_ = false;
  std::vector<const void*> sources_;  // of combine(), one for each rank that has one
};

}  // namespace kolo
