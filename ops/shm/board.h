#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "ops/host/doorbell.h"
#include "ops/shm/chunk_layout.h"

namespace kolo {

/// What the ranks of a group share: for each rank memory that it writes and the others read, and how far it has come.
///
/// The work of a group is a sequence of chunks, numbered from 0, the same on all ranks, each with a place in every
/// rank's memory (see ChunkLayout). On each rank a chunk goes through the phases in order, and each phase goes through
/// the chunks in order: so a counter per rank and phase, which only grows and which only that rank writes, says
/// everything. (A phase that nobody waits for need not be counted: a later chunk counts for those before. A small chunk
/// that is packed has a stamp instead.)
///
/// A board that has no ring at first may grow once: the ranks then show what comes next in larger memory, and leave
/// their counters where they are.
///
/// Each rank makes its part itself, which places the memory beside the processor that writes it. Nobody else writes
/// there, and no rank sees another's tensors: whoever leaves in the middle takes nothing away that peers would touch.
/// It sets `broken`, a word in the first rank's part, after everything that it has done, and peers give up what they
/// cannot complete.
class ShmBoard final {
 public:
  static constexpr std::size_t line = 128;  ///< two cache lines: processors fetch them in pairs
  enum class Phase : std::uint8_t {
    packed,    ///< what peers need of this rank's input is in its memory
    combined,  ///< what this rank has reduced of all inputs is in its memory
    collected  ///< this rank will not read the chunk in anybody's memory any more
  };

  /// Bytes of each rank's part, which begins at a multiple of `line`.
  static std::size_t bytes(int ranks, const ShmTuning& tuning);

  /// For rank `rank`. `parts`: by rank, zeros when they were made; `doorbells` are those of the other ranks, rung when
  /// this one has moved on: empty if all ranks poll.
  ShmBoard(std::vector<std::shared_ptr<std::byte>> parts, int rank, const ShmTuning& tuning,
           std::vector<Doorbell*> doorbells);

  int rank() const { return rank_; }
  int ranks() const { return static_cast<int>(parts_.size()); }
  const ShmTuning& tuning() const { return tuning_; }
  ChunkLayout& layout() { return layout_; }

  /// What `rank` shows to the others.
  std::byte* memory(int rank) const { return memory_[static_cast<std::size_t>(rank)]; }

  /// From the next chunk on, every rank shows that in `memory` (by rank, zeros when they were made), of
  /// ChunkLayout::bytes() each. All ranks do so before the same chunk, when they have collected all before.
  void grow(std::vector<std::shared_ptr<std::byte>> memory, const ShmTuning& tuning);

  /// Whether a rank is through with a phase of a chunk.
  bool reached(Phase phase, int rank, std::uint64_t chunk) {
    std::uint64_t& seen = seen_[static_cast<std::size_t>(phase)][static_cast<std::size_t>(rank)];
    if (seen <= chunk) seen = counter(phase, rank).load(std::memory_order_acquire);
    return seen > chunk;
  }

  /// This rank is through with a phase of a chunk: wakes those who may wait for that. `job`: the number of the chunk's
  /// job, if it has one, and peers may not have begun it: who has not will look by itself when it begins.
  void advance(Phase phase, std::uint64_t chunk, std::optional<std::uint64_t> job = {}) {
    publish(counter(phase, rank_), chunk + 1, job);
  }

  /// The same of packing a chunk at a hot place, without a counter.
  bool stamped(ChunkPlace place, int rank, std::uint64_t chunk) const { return stamp(place, rank).load() > chunk; }
  void set_stamp(ChunkPlace place, std::uint64_t chunk, std::optional<std::uint64_t> job) {
    publish(stamp(place, rank_), chunk + 1, job);
  }

  /// Of jobs with tokens, which are numbered from 0: this rank begins the next one. So many may be begun while a peer
  /// has not compared them.
  static constexpr std::uint64_t begun_at_once = 32;
  /// `rings`: nothing else that this rank publishes of the job does.
  void begin(std::uint64_t job, std::uint64_t token, bool rings) {
    Begun& mine = begun(job, rank_);
    mine.jobs.store(0, std::memory_order_relaxed);  // of an earlier job
    mine.token.store(token, std::memory_order_release);
    rings ? publish(mine.jobs, job + 1, job) : mine.jobs.store(job + 1);  // before this rank looks at the others
  }
  enum class Peer : std::uint8_t { not_there, same, other };
  /// Whether another rank has begun a job, and with the same token. Where it has begun a much later one in the same
  /// place, it has found them to be the same.
  Peer compare(std::uint64_t job, int rank, std::uint64_t token) const {
    const Begun& theirs = begun(job, rank);
    const std::uint64_t jobs = theirs.jobs.load(std::memory_order_acquire);
    if (jobs <= job) return Peer::not_there;
    const bool same = theirs.token.load(std::memory_order_acquire) == token;
    return same || theirs.jobs.load(std::memory_order_relaxed) != job + 1 ? Peer::same : Peer::other;
  }

  /// Ends all cooperation: nobody waits for this rank any more.
  void break_up() noexcept;
  /// Whether a rank had done so when this one began to look; what it read before then is of before.
  bool broken() const {
    std::atomic_thread_fence(std::memory_order_acquire);
    return header(0).broken.load() != 0;
  }

 private:
  static constexpr std::size_t phases = 3;
  struct alignas(line) Counter {
    std::atomic<std::uint64_t> chunks;  // through with this phase
  };
  struct alignas(16) Begun {
    std::atomic<std::uint64_t> token, jobs;  // how many, with this one
  };
  /// What a part begins with; the rest is the rank's memory. All zeros at first.
  struct alignas(line) Header {
    std::array<Counter, phases> through;
    alignas(line) std::atomic<std::uint64_t> broken;  // the first rank's counts
    alignas(line) std::array<Begun, begun_at_once> begun;
  };
  static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

  Header& header(int rank) const { return *reinterpret_cast<Header*>(parts_[static_cast<std::size_t>(rank)].get()); }
  std::atomic<std::uint64_t>& counter(Phase phase, int rank) const {
    return header(rank).through[static_cast<std::size_t>(phase)].chunks;
  }
  Begun& begun(std::uint64_t job, int rank) const { return header(rank).begun[job % begun_at_once]; }
  std::atomic<std::uint64_t>& stamp(ChunkPlace place, int rank) const {
    return reinterpret_cast<std::atomic<std::uint64_t>*>(memory(rank) + place.begin)[-1];
  }
  /// Where there are no doorbells the core need not wait until peers see it.
  void publish(std::atomic<std::uint64_t>& word, std::uint64_t value, std::optional<std::uint64_t> job = {}) const {
    if (doorbells_.empty()) return word.store(value, std::memory_order_release);
    word.store(value);  // sequentially consistent, as doorbell.h wants it
    job ? ring_begun(*job) : ring_peers();
  }
  void ring_begun(std::uint64_t job) const {
    for (std::size_t peer = 0; peer < doorbells_.size(); ++peer) {
      const int rank = static_cast<int>(peer) + (static_cast<int>(peer) >= rank_ ? 1 : 0);
      if (begun(job, rank).jobs.load() > job) doorbells_[peer]->ring();
    }
  }
  void ring_peers() const {
    for (Doorbell* doorbell : doorbells_) doorbell->ring();
  }

  std::vector<std::shared_ptr<std::byte>> parts_, grown_;
  std::vector<std::byte*> memory_;
  int rank_;
  ShmTuning tuning_;
  ChunkLayout layout_;
  std::vector<Doorbell*> doorbells_;
  std::array<std::vector<std::uint64_t>, phases> seen_;  // what the counters said when they were read last
};

}  // namespace kolo
