#pragma once

#include <vector>

#include "runtime/coordinator/pending_queue.h"
#include "runtime/watchdog/stall_report.h"

namespace kolo {

/// What a rank waits for, as its watchdog publishes and reports it.
std::vector<InFlight> list(const PendingQueue& queue);

}  // namespace kolo
