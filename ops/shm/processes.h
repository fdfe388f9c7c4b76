#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>

#include <kolo/backend.h>

#include "ops/host/doorbell.h"
#include "ops/host/gathering.h"
#include "ops/host/xpmem.h"
#include "ops/shm/board.h"
#include "ops/shm/chooser.h"

namespace kolo {

/// shm_backend() among `ranks`, which are processes of one node, introduced. Collective over them.
///
/// known   of how tensors travel best, equal on all ranks; null: nothing
/// tuning  null: what suits this machine, as the first rank sees it
/// xpmem   of this rank, if it has that: adopted memory stays what it is where all ranks can attach each other's
/// report  receives one line, on one rank, if memory cannot be shared, by the world (then this returns null) or by a
/// group
std::unique_ptr<Backend> shm_process_backend(Gathering& ranks, std::span<Doorbell> doorbells,
                                             const std::function<void(const std::string&)>& report,
                                             std::shared_ptr<const ShmKnown> known = {},
                                             const ShmTuning* tuning = nullptr,
                                             std::shared_ptr<const Xpmem> xpmem = {});

}  // namespace kolo
