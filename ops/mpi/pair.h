#pragma once

#include <mpi.h>

#include <memory>

#include <kolo/backend.h>

namespace kolo {

/// What goes from one rank to another over MPI: plain non-blocking messages on `comm`, which must outlive the backend.
/// Making it involves no other rank. `peer` is the other rank in `comm`.
///
/// MPI matches the messages of a pair in the order in which both ranks start them, so of two ranks there is at most one
/// such backend in use for each direction.
std::unique_ptr<Backend> mpi_pair_backend(MPI_Comm comm, int peer);

}  // namespace kolo
