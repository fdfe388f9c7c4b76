#pragma once

#include <string>

#include <kolo/config.h>
#include <kolo/world.h>

#include "runtime/world/launcher.h"

namespace kolo {

/// What launcher_world() does where no store is meant: defined by mpi_world.cc, or by no_mpi.cc in a build without MPI.
World mpi_launcher_world(const Launched& launched, const Config& config);
/// Why that makes no world over MPI; empty: it does.
std::string why_no_mpi();

/// The world of ranks that meet through a store at launched.address and a port behind launched.port.
World store_launcher_world(const Launched& launched, const Config& config);

}  // namespace kolo
