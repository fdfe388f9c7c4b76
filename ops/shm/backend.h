#pragma once

#include <memory>
#include <span>
#include <vector>

#include <kolo/backend.h>

#include "ops/host/doorbell.h"
#include "ops/host/region.h"
#include "ops/shm/board.h"
#include "ops/shm/memory.h"

namespace kolo {

/// Where the groups of a world get the memory from that their members share.
class RegionSource {
 public:
  virtual ~RegionSource() = default;

  /// The region of a group, zeros when it is made. Collective over the group's members, and may wait for them. Null, on
  /// all of them, if the memory cannot be had or shared.
  virtual std::shared_ptr<Region> region_for(const GroupInfo& group, std::size_t bytes) = 0;

  /// Memory for the tensors of this rank that its peers can reach; ranks count in the world. Never null.
  virtual std::shared_ptr<ShmMemory> memory() = 0;

  /// Called once after a peer left without finishing: release nothing collectively from now on.
  virtual void abandon() noexcept = 0;
};

/// The backend of host tensors for ranks on one node, whose members copy chunks through a ring of memory that they
/// share: nothing is sent, and no system call is made unless a rank sleeps. Large buckets whose tensors lie in
/// memory() on every rank that they are needed from are not even copied: ranks read and write each other's tensors.
///
/// world  all ranks, as a group
/// doorbells  one per rank of the world, rung when a peer has moved an operation on; they outlive all backends and
///            operations. May be empty if all ranks poll.
///
/// Serves every operation on host tensors, reductions where reducible(), with the same bits as the other backends.
/// Collective over the world; null, on all ranks, if memory cannot be shared. Groups that cannot share memory have no
/// such backend either.
///
/// A rank is complete when it has its result and peers do not need its tensors any more; it may then leave. One that
/// abandons, or destroys an operation before it is complete, breaks the group: step() completes what that rank had done
/// its part of, and throws Error{aborted} for the rest.
std::unique_ptr<Backend> shm_backend(std::shared_ptr<RegionSource> source, const GroupInfo& world,
                                     std::span<Doorbell> doorbells, const ShmTuning& tuning);

/// The same for ranks that are threads of this process: element r belongs to rank r. They could all reach all tensors;
/// they do so only for those in memory(), as processes would.
std::vector<std::unique_ptr<Backend>> shm_thread_backends(int ranks, std::span<Doorbell> doorbells,
                                                          const ShmTuning& tuning = {});

}  // namespace kolo
