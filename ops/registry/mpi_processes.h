#pragma once

#include <mpi.h>

#include "ops/registry/processes.h"

namespace kolo {

/// Of a world whose ranks are those of `comm`, which each backend duplicates: whatever shared memory does not serve
/// travels over MPI.
ProcessBackends backends_over_mpi(MPI_Comm comm);

}  // namespace kolo
