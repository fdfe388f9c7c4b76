#pragma once

#include <cstdint>

namespace kolo::bench {

/// The MPI calls of this process since count_mpi_calls(), of every function that this program uses.
std::int64_t mpi_calls();

/// Starts counting.
void count_mpi_calls();

}  // namespace kolo::bench
