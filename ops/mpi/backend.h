#pragma once

#include <mpi.h>

#include <memory>

#include <kolo/backend.h>

#include "ops/mpi/transfer.h"

namespace kolo {

/// The backend that works anywhere: non-blocking MPI collectives among the ranks of `comm`, which it duplicates. Making
/// and destroying it are collective (destroying it after abandon() or a failure is not). Throws Error{backend}.
///
/// Serves every operation on host tensors, reductions where reducible(). Results are the same bits as those of the
/// local backend. Needs polling.
///
/// An operation that is destroyed unfinished breaks the group on this rank. MPI cannot withdraw a collective: a tensor
/// that travels without being packed may be read or written by later MPI calls of the process until the process ends.
std::unique_ptr<Backend> mpi_backend(MPI_Comm comm, const MpiTuning& tuning = {});

/// What goes from one rank to another over MPI: plain non-blocking messages on `comm`, which must outlive the backend.
/// Making it involves no other rank. `peer` is the other rank in `comm`.
///
/// MPI matches the messages of a pair in the order in which both ranks start them, so of two ranks there is at most one
/// such backend in use for each direction.
std::unique_ptr<Backend> mpi_pair_backend(MPI_Comm comm, int peer);

}  // namespace kolo
