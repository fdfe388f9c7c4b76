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

}  // namespace kolo
