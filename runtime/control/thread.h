#pragma once

#include <memory>
#include <vector>

#include "runtime/control/channel.h"

namespace kolo {

/// Channels between `topology.size()` ranks in this process, one per rank, over one region of heap. `topology` may say
/// that the ranks are on several nodes; messages are carried the same way.
std::vector<std::unique_ptr<ControlChannel>> thread_channels(const Topology& topology);

/// The doorbells of all ranks, for backends; valid as long as any of the channels.
std::span<Doorbell> thread_bells(ControlChannel& channel);

}  // namespace kolo
