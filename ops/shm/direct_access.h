#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "ops/shm/memory.h"
#include "ops/shm/question.h"

namespace kolo {

/// Lets the ranks of a group find out whether a bucket needs no copies, because its tensors lie in ShmMemory wherever
/// peers need them.
///
/// A job that asks begins with a chunk of its own, in which every rank shows where its tensors lie. As the answer
/// mostly is what it was the last time, jobs ask while it is yes; after a no only one in a while does, so that buckets
/// in other memory lose no time.
class DirectAccess final : public ShmQuestion {
 public:
  /// members  the ranks of the group, as ranks of the world that `memory` is for
  DirectAccess(std::shared_ptr<ShmMemory> memory, std::vector<int> members, int rank)
      : memory_(std::move(memory)), members_(std::move(members)), rank_(rank) {}

  /// Whether a job is to ask; to be called once for each, in order.
  bool asks(const ShmJob& job, const ShmTuning& tuning);

  std::size_t bytes(const ShmJob& job) const override;
  /// Shows where this rank's tensors lie.
  void show(const ShmJob& job, std::byte* to) override;
  void read(ShmJob& job, const Shown& shown) override;

 private:
  std::unique_ptr<PeerTensors> map(const Bucket& bucket, const Shown& shown);

  std::shared_ptr<ShmMemory> memory_;
  std::vector<int> members_;
  int rank_;
  bool last_answer_ = false;
  int jobs_since_asked_ = 0;
};

}  // namespace kolo
