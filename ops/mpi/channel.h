#pragma once

#include <mpi.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <unordered_set>
#include <vector>

#include <kolo/backend.h>

#include "ops/chunk.h"
#include "ops/host/host_buffer.h"
#include "ops/mpi/association.h"
#include "ops/mpi_base/handles.h"

namespace kolo {

/// Sizes that decide how chunks travel, in bytes; equal on all ranks. Chosen by measurement.
struct MpiTuning {
  ChunkRule chunks;
  std::int64_t small = 16 << 10;  ///< up to this size what is combined travels whole, not in slices
  std::size_t in_flight = 4;      ///< chunks of a group on their way at one time, below MpiChannel::chunk_tags
  /// all_gather: a block that is not packed travels in messages of this size, where that is more than a chunk's.
  std::int64_t message = 0;
  std::int64_t eager = 0;  ///< of messages that MPI sends without asking the receiver first; a multiple of 64
  int few = 4;             ///< up to so many ranks send to each other directly; more do so along trees
};

/// Inter-node: small chunks, enough of them to keep the network busy, also with a tensor of a few MiB.
inline constexpr MpiTuning between_nodes{{512 << 10, 1 << 15}, 16 << 10, 15, 2 << 20, 32 << 10};

/// What the groups of a backend of all ranks share on one rank: a communicator, its tags, and staging. Used by one
/// thread at a time.
class MpiChannel final {
 public:
  /// Tags of a group, which its chunks take in turn.
  static constexpr int chunk_tags = 16;
  static_assert(between_nodes.in_flight < chunk_tags && MpiTuning{}.in_flight < chunk_tags);
  static constexpr int pair_tag = 1;  ///< below those of all groups
  static constexpr int lane_tag = 3;

  /// Duplicates `comm`: collective. Throws Error{backend}.
  MpiChannel(MPI_Comm comm, const MpiTuning& tuning, RankPlaces places = {});
  /// Collective, but after abandon().
  ~MpiChannel();
  MpiChannel(const MpiChannel&) = delete;
  MpiChannel& operator=(const MpiChannel&) = delete;

  MPI_Comm comm() const { return comm_.get(); }
  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  const MpiTuning& tuning() const { return tuning_; }
  const RankPlaces& places() const { return places_; }

  /// Buffers of buffer_bytes() bytes. Those of one chunk are reserved when the channel is made; it keeps as many as a
  /// group uses.
  BufferPool& staging() { return staging_; }
  /// Room for a chunk of a group of any size: slices are rounded up to lines, and a chunk has an element of each rank's
  /// block at least.
  std::size_t buffer_bytes() const {
    return static_cast<std::size_t>(tuning_.chunks.largest + std::int64_t{64} * ranks_);
  }

  /// Of the tags, blocks of `chunk_tags` that a rank gives to groups of which it is the first member, as many as every
  /// rank has: so no two groups have the same. Block 0 is that of all ranks.
  std::uint64_t blocks_of_rank() const { return blocks_of_rank_; }
  /// Takes one until give_back(). Throws Error{backend} if this rank has given all away.
  std::uint64_t take_block(const std::string& group);
  void give_back(std::uint64_t block) noexcept { taken_.erase(block); }

  /// Destroying it releases nothing collectively.
  void abandon() noexcept { abandoned_ = true; }

 private:
  MpiTuning tuning_;
  RankPlaces places_;
  MpiComm comm_;
  int rank_ = 0;
  int ranks_ = 1;
  std::uint64_t blocks_of_rank_ = 0;
  std::unordered_set<std::uint64_t> taken_;
  std::uint64_t next_ = 0;  // of this rank's blocks
  BufferPool staging_;
  bool abandoned_ = false;
};

/// The members of a group, as one of them sees it, and tags that no other group uses between the same ranks.
class MpiGroup final {
 public:
  /// All ranks of the channel.
  explicit MpiGroup(std::shared_ptr<MpiChannel> channel);
  /// `members`: ranks of the channel, by rank of the group. A part of the world that has at most one rank in common
  /// with any other such part has the world's tags; a group has none before it is introduced.
  MpiGroup(std::shared_ptr<MpiChannel> channel, const GroupInfo& group, std::vector<int> members);
  ~MpiGroup();
  MpiGroup(const MpiGroup&) = delete;
  MpiGroup& operator=(const MpiGroup&) = delete;

  /// The first member's choice of tags. Throws Error{backend} if there are none left.
  Introduction introduction();
  void introduce(std::span<const Introduction> members);

  MpiChannel& channel() const { return *channel_; }
  const std::shared_ptr<MpiChannel>& shared_channel() const { return channel_; }
  int rank() const { return rank_; }
  int ranks() const { return static_cast<int>(members_.size()); }
  int channel_rank(int member) const { return members_[static_cast<std::size_t>(member)]; }
  const Association& association() const { return association_; }
  int tag(std::uint64_t chunk) const {
    return static_cast<int>((block_ + 1) * MpiChannel::chunk_tags + chunk % MpiChannel::chunk_tags);
  }

 private:
  std::shared_ptr<MpiChannel> channel_;
  std::vector<int> members_;
  Association association_;
  int rank_;
  std::string name_;
  std::uint64_t block_ = 0;
  bool gave_tags_ = false;
};

/// Messages between this rank and others, none of them empty: these are not sent.
class MpiMessages final {
 public:
  /// Starts one; the memory is MPI's until arrived() is true. Throws Error{backend}.
  void send(MPI_Comm comm, int to, int tag, const std::byte* data, std::size_t bytes);
  void receive(MPI_Comm comm, int from, int tag, std::byte* data, std::size_t bytes);

  /// Whether all have been sent and received. Throws Error{backend}.
  bool arrived();

  /// Nobody waits for them any more: what has not begun to arrive is not received. Then finished_by() is to be called.
  void cancel() noexcept;
  /// Waits for what is arriving, until `deadline`; not for what is being sent. Whether MPI has finished with all
  /// memory.
  bool finished_by(std::chrono::steady_clock::time_point deadline) noexcept;
  /// For finished_by(): longer than what has begun to arrive takes.
  static std::chrono::steady_clock::time_point deadline() {
    return std::chrono::steady_clock::now() + std::chrono::milliseconds(100);
  }

 private:
  std::vector<MPI_Request> sends_, receives_;
};

}  // namespace kolo
