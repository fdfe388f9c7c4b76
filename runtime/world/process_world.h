#pragma once

#include <functional>

#include <kolo/config.h>
#include <kolo/world.h>

#include "ops/host/gathering.h"
#include "ops/registry/processes.h"

namespace kolo {

/// A world of processes that `ranks` brings together; collective over them.
///
/// end_job   ends all of them with an exit code; null: the watchdog must not end the process
/// backends  how their data move
World process_world(Gathering& ranks, std::function<void(int exit_code)> end_job, const ProcessBackends& backends,
                    const Config& config);

}  // namespace kolo
