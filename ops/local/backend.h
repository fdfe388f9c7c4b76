#pragma once

#include <memory>
#include <span>
#include <vector>

#include <kolo/backend.h>

#include "ops/host/doorbell.h"

namespace kolo {

/// The backend of a group whose ranks are threads of this process (or of one rank): element r belongs to rank r. Ranks
/// read and write each other's tensors directly; nothing is staged, packed or sent.
///
/// doorbells  one per rank, rung when a peer has moved an operation on; they outlive all backends and operations. May
///            be empty if all ranks poll.
///
/// Serves every operation on host tensors, reductions where reducible(). A rank that abandons, or destroys an operation
/// before it is complete, breaks the group: from then on step() throws Error{aborted} on the other ranks, and no rank
/// touches the memory of its buckets any more. That destruction waits for peers who are copying at this moment, for at
/// most the time of copying one chunk.
std::vector<std::unique_ptr<Backend>> local_backends(int ranks, std::span<Doorbell> doorbells);

}  // namespace kolo
