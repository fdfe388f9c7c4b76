#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ops/shm/board.h"
#include "ops/shm/memory.h"
#include "ops/shm/question.h"

namespace kolo {

/// Gives a board without a ring the memory for larger chunks, when a first job would need several of the small ones: so
/// a group that moves a few bytes now and then costs a few kilobytes.
///
/// The ranks ask each other twice: where the memory of each lies, and whether each has mapped that of the others. If
/// one has not, all go on without, for good, in small chunks.
class ShmGrowth final : public ShmQuestion {
 public:
  /// board    that grows; it outlives this
  /// members  the ranks of the group, as ranks of the world that `memory` is for
  /// tuning   of the board when it has grown: that of one that has a ring already never changes
  /// report   receives the reason, on a rank that has no memory or cannot map that of the others
  ShmGrowth(ShmBoard& board, std::shared_ptr<ShmMemory> memory, std::vector<int> members, const ShmTuning& tuning,
            std::function<void(const std::string&)> report);

  /// Whether a job is to ask; it has been cut for the board as it is.
  bool asks(const ShmJob& job) const { return next_ != Step::done && job.next_count() < job.left; }

  std::size_t bytes(const ShmJob&) const override { return sizeof(PeerAddress); }
  void show(const ShmJob& job, std::byte* to) override;
  void read(ShmJob& job, const Shown& shown) override;

 private:
  enum class Step : std::uint8_t { addresses, mapped, done };

  bool map_all(const Shown& shown);

  ShmBoard& board_;
  std::shared_ptr<ShmMemory> memory_;
  std::vector<int> members_;
  ShmTuning tuning_;
  std::function<void(const std::string&)> report_;
  Step next_;
  std::vector<std::shared_ptr<std::byte>> parts_;  // by rank
  bool mapped_ = false;                            // all of them are
  std::string why_not_;
};

}  // namespace kolo
