#pragma once

#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include <kolo/backend.h>

#include "ops/chunk.h"
#include "ops/host/host_buffer.h"
#include "ops/kernels/reduce.h"
#include "ops/mpi/channel.h"

namespace kolo {

class MpiTransfer;

/// How the chunks of one kind of operation travel, in phases.
struct MpiMethod {
  void (*begin)(MpiTransfer&);    ///< starts the messages of the first phase
  bool (*proceed)(MpiTransfer&);  ///< those of phase() have arrived: starts those of the next, or returns false
  void (*finish)(MpiTransfer&);   ///< there is no next: puts the results in place
};

/// The method of a kind of operation; null if there is none.
const MpiMethod* mpi_method(OpKind kind);

extern const MpiMethod mpi_all_reduce, mpi_reduce, mpi_broadcast, mpi_reduce_scatter, mpi_all_gather, mpi_gather,
    mpi_scatter, mpi_all_to_all;

/// One chunk on its way through MPI; serves one after the other.
///
/// Life of a chunk: reserve() takes the staging that it needs; begin() starts its first phase; whenever a phase has
/// arrived, proceed() starts the next, or, after the last, puts the results in place and gives the staging back. The
/// chunk's tensors are used in between.
class MpiTransfer {
 public:
  explicit MpiTransfer(const MpiGroup& group) : group_(group) {}

  /// Takes what staging the chunk needs out of the channel's. Without `allocate` only if the group's share is not in
  /// use; whether that has succeeded. Throws Error{backend} if memory has to be allocated, and there is none.
  bool reserve(const Bucket& bucket, const Chunk& chunk, bool allocate);
  void begin(int tag);
  void proceed();
  /// The phase that was started last; a large number once the chunk is complete.
  int phase() const { return phase_; }
  bool complete() const { return phase_ == no_phase; }

  /// Whether the phase that was started last has arrived. Throws Error{backend}.
  bool arrived() { return messages_.arrived(); }

  /// The chunk is given up: no message of it that has not begun to arrive is received.
  void cancel() noexcept { messages_.cancel(); }
  /// After cancel(): waits until `deadline` for what is arriving. Staging that MPI may still use is leaked.
  void give_up(std::chrono::steady_clock::time_point deadline) noexcept;

  /// Copied into and out of staging so far.
  std::uint64_t staged_bytes() const { return staged_bytes_; }

  // ---- for methods: what travels
  // --------------------------------------------------------------------------------------

  const Signature& signature() const { return bucket_->signature; }
  int rank() const { return group_.rank(); }
  int ranks() const { return group_.ranks(); }
  bool is_root() const { return signature().root == rank(); }
  std::size_t element_bytes() const { return size_of(signature().dtype); }
  std::int64_t count() const { return chunk_.count; }
  /// Of the chunk; of one rank's block where ranks have blocks: the longest.
  std::size_t bytes() const { return static_cast<std::size_t>(chunk_.count) * element_bytes(); }
  Reduction reduction() const { return reduction_of(signature(), bucket_->divide_by); }
  /// Whether the chunk goes through staging, not straight from and to the tensor.
  bool staged() const { return staged_; }
  /// Whether ranks send the whole chunk instead of slices: because it is small, or because they are two.
  bool travels_whole() const;
  /// The ranks whose partial sums are combined along a NodeTree, in their order; empty if others' values go to where
  /// they are combined.
  const std::vector<int>& tree() const { return tree_; }
  /// In what partial sums are: see carried_type().
  DType carried() const { return carried_; }
  std::int64_t small() const { return group_.channel().tuning().small; }
  int few() const { return group_.channel().tuning().few; }
  /// Whether the bucket has as many chunks as the group has ranks, so that a chain of these is busy all along.
  bool fills_chain() const;

  // ---- for methods: memory
  // --------------------------------------------------------------------------------------------

  /// Two pieces of staging, if the kind of operation uses them. Both have room for bytes(), and for bytes() of each
  /// rank where ranks have blocks: that of rank r is at() r.
  std::byte* packed() const { return packed_.data(); }
  std::byte* received() const { return received_.data(); }
  std::size_t at(int rank) const { return static_cast<std::size_t>(rank) * bytes(); }

  /// The chunk of the input, or of the output, where ranks have no blocks. In the tensor if it is not staged, else in
  /// packed().
  std::byte* input() const { return staged_ ? packed() : address(first_tensor().in, chunk_.position.offset); }
  std::byte* output() const { return staged_ ? packed() : address(first_tensor().out, chunk_.position.offset); }

  /// The chunk of the block that this rank has for another one, and of the one that it gets from there: in the tensor,
  /// or where it is staged. A block may lack the end of the chunk.
  std::span<std::byte> block_for(int peer) const;
  std::span<std::byte> block_from(int peer) const;

  /// Copies what is staged: the input to packed(); the results, from where they are, to the output.
  void pack_input();
  void pack_input(std::byte* to) { pack(rank(), to); }
  void unpack_output(const std::byte* from);
  /// The same for the blocks that this rank has for all ranks, and for those that it got.
  void pack_blocks();
  void unpack_blocks();
  /// Copies the block that this rank has for itself to where it gets it.
  void keep_own_block();

  // ---- for methods: messages
  // ------------------------------------------------------------------------------------------

  void send(int to, std::span<const std::byte> data) {
    messages_.send(group_.channel().comm(), group_.channel_rank(to), tag_, data.data(), data.size());
  }
  void receive(int from, std::span<std::byte> data) {
    messages_.receive(group_.channel().comm(), group_.channel_rank(from), tag_, data.data(), data.size());
  }
  /// Calls visit(rank) for the other ranks, in their order.
  template <class Visit>
  void for_each_peer(Visit visit) const {
    for (int peer = 0; peer < ranks(); ++peer) {
      if (peer != rank()) visit(peer);
    }
  }

  /// Combines what received(rank) has, of the ranks whose values count.
  template <class Received>
  void reduce(Received received, void* destination, std::int64_t elements) {
    sources_.clear();
    for (int rank = 0; rank < ranks(); ++rank) sources_.push_back(is_absent(rank) ? nullptr : received(rank));
    group_.association().reduce(reduction(), sources_, destination, static_cast<std::size_t>(elements));
  }
  bool is_absent(int rank) const { return std::ranges::binary_search(bucket_->absent, rank); }

  /// Of a method: the part of the chunk that this rank has after each round, the first is all of it.
  std::vector<ElementRange>& parts() { return parts_; }

 private:
  using Block = ElementRange (*)(OpKind kind, const BucketTensor& tensor, int ranks, int me, int peer);

  const BucketTensor& first_tensor() const { return bucket_->tensors[chunk_.position.tensor]; }

  template <class Copy>
  void for_each_segment_of(Block block, int peer, Copy copy) const;
  void pack(int peer, std::byte* to);
  void unpack(int peer, const std::byte* from);
  bool in_one_piece(Tensor BucketTensor::*side) const;
  std::span<std::byte> block(Block block, Tensor BucketTensor::*side, std::byte* staging, int peer) const;
  /// Whether inputs go through packed(): those of an all_to_all in-place, too, which results overwrite.
  bool packs_input() const;
  bool receives() const;
  void release_staging(bool unused) noexcept;
  void find_tree();

  static constexpr int no_phase = std::numeric_limits<int>::max();

  const MpiGroup& group_;
  const Bucket* bucket_ = nullptr;
  Chunk chunk_;
  int tag_ = 0;
  int phase_ = no_phase;
  DType carried_ = DType::f32;
  std::vector<int> tree_;
  std::vector<ElementRange> parts_;
  bool staged_ = false;
  HostBuffer packed_;
  HostBuffer received_;
  MpiMessages messages_;
  std::vector<const void*> sources_;
  std::uint64_t staged_bytes_ = 0;
};

}  // namespace kolo
