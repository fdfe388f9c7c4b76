#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "ops/shm/memory.h"
#include "ops/shm/transfer.h"

namespace kolo {

/// Lets the ranks of a group find out whether a bucket needs no copies, because its tensors lie in ShmMemory wherever
/// peers need them.
///
/// A job that asks begins with a chunk of its own, in which every rank shows where its tensors lie; no further chunk is
/// packed until the answer is there. All ranks read the same, so the answer is the same on all. As it mostly is what it
/// was the last time, jobs ask while the answer is yes; after a no only one in a while does, so that buckets in other
/// memory lose no time.
class DirectAccess final {
 public:
  /// members  the ranks of the group, as ranks of the world that `memory` is for
  DirectAccess(std::shared_ptr<ShmMemory> memory, std::vector<int> members, int rank)
      : memory_(std::move(memory)), members_(std::move(members)), rank_(rank) {}

  /// Whether a job is to ask; to be called once for each, in order.
  bool asks(const ShmJob& job, const ShmTuning& tuning);

  /// Of what a rank shows for a job.
  static std::size_t bytes(const Bucket& bucket);

  /// Shows where this rank's tensors lie.
  void show(const Bucket& bucket, std::byte* to) const;

  /// The answer, from what all ranks have shown; slot(rank) is where. Null: no.
  std::unique_ptr<PeerTensors> read(const Bucket& bucket, const std::function<const std::byte*(int rank)>& slot);

 private:
  std::shared_ptr<ShmMemory> memory_;
  std::vector<int> members_;
  int rank_;
  bool last_answer_ = false;
  int jobs_since_asked_ = 0;
};

extern const ShmMethod shm_show_addresses;

}  // namespace kolo
