#pragma once

#include <mpi.h>

#include <kolo/world.h>

namespace kolo {

/// A world of the ranks of `comm`, which is duplicated, so that the host program's own messages on it stay separate.
/// Collective over `comm`. For a session MPI must be initialised with MPI_THREAD_MULTIPLE, or MPI_THREAD_SERIALIZED if
/// the host makes no MPI call while operations are in flight; with less its constructor throws Error{invalid_argument}.
World mpi_world(MPI_Comm comm, const Config& config);

}  // namespace kolo
