#pragma once

#include <cstdint>

namespace kolo::bench {

/// How many calls of MPI this process has made since it began to count them: of every function that this program uses.
std::int64_t mpi_calls();

/// Begins to count.
void count_mpi_calls();

}  // namespace kolo::bench
