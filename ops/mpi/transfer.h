#pragma once

#include <mpi.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include <kolo/backend.h>

#include "ops/chunk.h"
#include "ops/host/host_buffer.h"
#include "ops/kernels/reduce.h"
#include "ops/mpi_base/handles.h"

namespace kolo {

/// The ranks that talk, and their two channels: MPI wants collectives of one communicator started in one order
/// everywhere, and ranks start second phases at different times.
struct MpiGroup {
  explicit MpiGroup(MPI_Comm comm);

  MpiComm exchange;  ///< first phase of every chunk, in chunk order
  MpiComm gather;    ///< second phase of those chunks that have one, in chunk order
  int rank = 0;
  int ranks = 1;
};

/// Sizes that decide how chunks travel, in bytes; equal on all ranks. Chosen by measurement.
struct MpiTuning {
  ChunkRule chunks;
  std::int64_t small = 16 << 10;  ///< up to this size every rank sends the whole chunk to every rank
  std::size_t in_flight = 4;      ///< chunks on their way at one time; each has staging of its own
};

/// Inter-node: small chunks, enough of them to keep the network busy, also with a tensor of a few MiB.
inline constexpr MpiTuning between_nodes{{512 << 10, 1 << 15}, 16 << 10, 8};

class MpiTransfer;

/// How the chunks of one kind of operation travel, in one phase or two.
struct MpiMethod {
  void (*begin)(MpiTransfer&);    ///< starts the first phase, on MpiGroup::exchange
  void (*proceed)(MpiTransfer&);  ///< it has arrived: starts the second, on MpiGroup::gather, if any
  void (*finish)(MpiTransfer&);   ///< that has arrived too: puts the results in place
};

/// The method of a kind of operation; null if there is none.
const MpiMethod* mpi_method(OpKind kind);

extern const MpiMethod mpi_all_reduce, mpi_reduce, mpi_broadcast, mpi_reduce_scatter, mpi_all_gather, mpi_gather,
    mpi_scatter, mpi_all_to_all;

/// One chunk on its way through MPI, and staging memory for it that serves one chunk after the other.
///
/// Life of a chunk: begin() starts its first phase; when that has arrived, proceed() starts the second, if any; when
/// that has arrived too, finish() puts the results in place. The chunk's tensors are used in between.
class MpiTransfer {
 public:
  MpiTransfer(const MpiGroup& group, const MpiTuning& tuning);

  void begin(const Bucket& bucket, const Chunk& chunk);
  void proceed() { mpi_method(signature().kind)->proceed(*this); }
  void finish();

  /// Whether the phase that was started last has arrived. Throws Error{backend}.
  bool arrived();

  /// Forgets memory that MPI may still write to.
  void leak() noexcept;

  /// Copied into and out of staging so far.
  std::uint64_t staged_bytes() const { return staged_bytes_; }

  // ---- for methods: what travels
  // --------------------------------------------------------------------------------------

  const Signature& signature() const { return bucket_->signature; }
  const MpiGroup& group() const { return group_; }
  int ranks() const { return group_.ranks; }
  bool is_root() const { return signature().root == group_.rank; }
  std::size_t element_bytes() const { return size_of(signature().dtype); }
  std::int64_t count() const { return chunk_.count; }
  /// Of the chunk; of one rank's block where ranks have blocks: the longest.
  int bytes() const { return static_cast<int>(static_cast<std::size_t>(chunk_.count) * element_bytes()); }
  /// What this rank sends to a rank, and gets from it, where ranks have blocks: a block may lack the end of the
  /// chunk.
  int sent_bytes(int to) const;
  int received_bytes(int from) const;
  Reduction reduction() const { return reduction_of(signature(), bucket_->divide_by); }
  /// Whether the chunk goes through staging, not straight from and to the tensor.
  bool staged() const { return staged_; }
  /// Whether every rank sends the whole chunk instead of slices, because it is small.
  bool travels_whole() const;

  // ---- for methods: memory
  // --------------------------------------------------------------------------------------------

  /// Two pieces of staging. Both have room for bytes(), and for bytes() of each rank where ranks have blocks: that of
  /// rank r is at() r.
  std::byte* packed() const { return packed_.data(); }
  std::byte* received() const { return received_.data(); }
  std::size_t at(int rank) const { return static_cast<std::size_t>(rank) * static_cast<std::size_t>(bytes()); }

  /// The chunk of the input, or of the output: of all elements, of this rank's block for the smaller one of an
  /// operation with blocks. In the tensor if it is not staged, else in packed().
  std::byte* input() const { return staged_ ? packed() : address(first_tensor().in, chunk_.position.offset); }
  std::byte* output() const { return staged_ ? packed() : address(first_tensor().out, chunk_.position.offset); }

  /// Copies the chunk from the input to input(), or from output() to the output, if it is staged.
  void pack_input();
  void unpack_output();

  /// Copies this rank's block to the output, which holds no other.
  void unpack_own_block(const std::byte* from);
  /// Copies the blocks of all ranks from the input to packed(), or from received() to the output.
  void pack_blocks();
  void unpack_blocks();

  // ---- for methods: arguments of MPI calls
  // ----------------------------------------------------------------------------

  /// The request of the phase; MPI reads and writes what the call was given until it has arrived.
  MPI_Request* request() { return &request_; }
  std::vector<int> counts, offsets, send_counts, send_offsets;  // per rank

  /// received(rank) for the ranks whose values are combined, in order; valid until the next call.
  template <class Received>
  std::span<const void* const> sources_of_present(Received received) {
    sources_.clear();
    for (int rank = 0; rank < ranks(); ++rank) {
      if (!std::ranges::binary_search(bucket_->absent, rank)) sources_.push_back(received(rank));
    }
    return sources_;
  }

 private:
  using Block = ElementRange (*)(OpKind kind, const BucketTensor& tensor, int ranks, int me, int peer);

  const BucketTensor& first_tensor() const { return bucket_->tensors[chunk_.position.tensor]; }

  template <class Copy>
  void for_each_segment_of(Block block, int peer, Copy copy) const;
  template <class Move>
  void stage(Block block, int peer, Move move);
  bool in_one_piece(Tensor BucketTensor::*side) const;
  int bytes_of(Block block, int peer) const;

  const MpiGroup& group_;
  const MpiTuning& tuning_;
  const Bucket* bucket_ = nullptr;
  Chunk chunk_;
  bool staged_ = false;
  HostBuffer packed_;
  HostBuffer received_;
  MPI_Request request_ = MPI_REQUEST_NULL;
  std::vector<const void*> sources_;
  std::uint64_t staged_bytes_ = 0;
};

}  // namespace kolo
