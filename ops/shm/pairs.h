#pragma once

#include <memory>
#include <span>
#include <vector>

#include <kolo/backend.h>

#include "ops/host/doorbell.h"
#include "ops/host/gathering.h"
#include "ops/shm/chooser.h"

namespace kolo {

/// What one rank of a node sends another, through memory that they share: for each ordered pair of them rings of bytes
/// with one writer and one reader; on lanes one of them also copies what lies in the other's memory. Serves nothing but
/// the pairs that for_group() is asked for, and lane(), within a node. Collective over `ranks`; null, on all of them,
/// if memory cannot be shared.
///
/// node_of    by rank; empty: all on one
/// doorbells  one per rank of this node, rung when a peer has written or read; they outlive the backend
/// memory     of a backend of these ranks of the node; null: tensors lie elsewhere
/// known      of how messages go best; null: nothing
std::unique_ptr<Backend> shm_pairs_backend(Gathering& ranks, std::span<const int> node_of,
                                           std::span<Doorbell> doorbells, std::shared_ptr<MemorySource> memory,
                                           std::shared_ptr<const ShmKnown> known = {});

/// The same for ranks that are threads of this process: element r belongs to rank r.
std::vector<std::unique_ptr<Backend>> shm_thread_pairs_backends(int ranks, std::span<Doorbell> doorbells);

}  // namespace kolo
