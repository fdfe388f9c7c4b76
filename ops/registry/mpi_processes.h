#pragma once

#include <mpi.h>

#include <memory>

#include "ops/registry/processes.h"

namespace kolo {

/// Of a world whose ranks are those of `comm`, which each backend duplicates: whatever shared memory does not serve
/// travels over MPI.
ProcessBackends backends_over_mpi(MPI_Comm comm);

/// What serves this node's ranks best: shared memory, or MPI where they cannot share it, of which one rank's report()
/// says why. Null if this rank is alone on its node. Collective.
std::unique_ptr<Backend> node_backend(const ProcessRanks& ranks, MPI_Comm comm);

}  // namespace kolo
