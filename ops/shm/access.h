#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "ops/shm/chooser.h"
#include "ops/shm/memory.h"
#include "ops/shm/peer_tensors.h"
#include "ops/shm/question.h"

namespace kolo {

/// One rank's part of the second question, or what is kept of all from the first to the second.
struct ShmMapping {
  ShmChooser::Said said;                      // of all
  std::vector<std::vector<std::byte>> shown;  // by rank
  bool mapped = false;                        // by this rank
  std::string why_not;
};

/// Lets the ranks of a group show each other where the tensors of a bucket lie, and agree how it travels: through the
/// ring, or without, since they can map the tensors, or read them.
///
/// Where a rank shows memory for the first time, or memory has gone, they ask once more: whether all have mapped it. If
/// one has not, they map nothing any more in this group.
class ShmAccess final : public ShmQuestion {
 public:
  /// members  the ranks of the group, as ranks of the world that `memory` is for
  /// report   receives the reason, on a rank that cannot map what the others show
  ShmAccess(std::shared_ptr<ShmMemory> memory, std::vector<int> members, int rank, ShmChooser chooser,
            std::function<void(const std::string&)> report)
      : memory_(std::move(memory)),
        members_(std::move(members)),
        rank_(rank),
        chooser_(std::move(chooser)),
        report_(std::move(report)) {}

  /// Whether a job is to ask; to be called once for each, in order. Who does not has its choice then.
  bool asks(ShmJob& job, const ShmTuning& tuning);
  /// A job that was a trial is complete on this rank.
  void complete(const ShmJob& job);

  const ShmChooser& chooser() const { return chooser_; }

  std::size_t bytes(const ShmJob& job) const override;
  /// Shows where this rank's tensors lie.
  void show(const ShmJob& job, std::byte* to) override;
  void read(ShmJob& job, const Shown& shown) override;

 private:
  void map_all(const Bucket& bucket);
  void hear_who_mapped(ShmJob& job, const Shown& shown);
  void choose(ShmJob& job, const ShmChooser::Said& all, const Shown& shown);
  std::unique_ptr<PeerTensors> find_all(const Bucket& bucket, const Shown& shown, const ShmChoice& choice);

  std::shared_ptr<ShmMemory> memory_;
  std::vector<int> members_;
  RoomForCopies room_;
  int rank_;
  ShmChooser chooser_;
  std::function<void(const std::string&)> report_;
  bool maps_ = true;               // all of them can
  std::set<std::uint64_t> known_;  // pieces of this rank that all others have mapped
  std::uint64_t released_ = 0;     // pieces of this rank, when it showed some last
  std::optional<ShmMapping> mapping_;
};

}  // namespace kolo
