#pragma once

#include <mpi.h>

#include <cstddef>
#include <memory>
#include <string>

#include "ops/host/region.h"

namespace kolo {

/// A region that all ranks of `comm`, which are on one node, have mapped: rank 0 makes it, the others open it.
/// Collective. Null, on all ranks, if that fails on any; `why`, if given, then says what went wrong on the lowest of
/// these, and is left empty on the other ranks. Throws Error{backend} if MPI fails.
std::shared_ptr<Region> shared_region(MPI_Comm comm, std::size_t bytes, std::string* why = nullptr);

}  // namespace kolo
