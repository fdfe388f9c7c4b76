#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <kolo/backend.h>

#include "ops/host/doorbell.h"
#include "ops/shm/board.h"
#include "ops/shm/chooser.h"
#include "ops/shm/memory.h"

namespace kolo {

/// What the backends of one rank, for the world and for groups, have in common.
struct ShmWorld {
  std::shared_ptr<ShmMemory> memory;  ///< of this rank, for its peers to reach; ranks count in the world
  std::span<Doorbell> doorbells;      ///< one per rank of the world, rung when a peer has moved an operation on; they
                                      ///< outlive all backends and operations. May be empty if all ranks poll.
  ShmTuning tuning;
  std::shared_ptr<const ShmKnown> known;           ///< of how tensors travel best; null: nothing
  std::function<void(const std::string&)> report;  ///< receives one line, on one rank, if a group cannot share memory
};

/// The backend of host tensors for ranks on one node, whose members copy chunks through a ring of memory that they
/// share: nothing is sent, and no system call is made unless a rank sleeps. Large buckets whose tensors lie in
/// memory() on every rank that they are needed from are not even copied: ranks read and write each other's tensors.
///
/// group  all ranks
///
/// Serves every operation on host tensors, reductions where reducible(), with the same bits as the other backends.
/// Has to be introduced, as those of groups: ranks tell each other where their parts of the shared memory lie.
///
/// A rank is complete when it has its result and peers do not need its tensors any more; it may then leave. One that
/// abandons, or destroys an operation before it is complete, breaks the group: step() completes what that rank had done
/// its part of, and throws Error{aborted} for the rest.
std::unique_ptr<Backend> shm_backend(const ShmWorld& world, const GroupInfo& group);

/// The same for ranks that are threads of this process: element r belongs to rank r. They could all reach all tensors;
/// they do so only for those in memory(), as processes would.
std::vector<std::unique_ptr<Backend>> shm_thread_backends(int ranks, std::span<Doorbell> doorbells,
                                                          const ShmTuning& tuning = {},
                                                          std::shared_ptr<const ShmKnown> known = {});

}  // namespace kolo
