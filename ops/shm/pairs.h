#pragma once

#include <memory>
#include <span>

#include <kolo/backend.h>

#include "ops/host/doorbell.h"
#include "ops/host/gathering.h"

namespace kolo {

/// What one rank of a node sends another, through memory that `ranks`, which are processes of that node, share: for
/// each ordered pair of them a ring of bytes with one writer and one reader. Serves nothing but the pairs that
/// for_group() is asked for. Collective over `ranks`; null, on all of them, if memory cannot be shared.
///
/// doorbells  one per rank, rung when a peer has written or read; they outlive the backend
std::unique_ptr<Backend> shm_pairs_backend(Gathering& ranks, std::span<Doorbell> doorbells);

}  // namespace kolo
