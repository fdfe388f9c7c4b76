#pragma once

#include <memory>
#include <vector>

#include "runtime/control/channel.h"

namespace kolo {

/// One channel for each of the `topology.size()` ranks in this process, over one region on the heap, also where
/// `topology` has several nodes.
std::vector<std::unique_ptr<ControlChannel>> thread_channels(const Topology& topology);

/// The doorbells of all ranks, for backends; valid as long as any of the channels.
std::span<Doorbell> thread_doorbells(ControlChannel& channel);

}  // namespace kolo
