#pragma once

#include <cstdint>
#include <functional>

namespace kolo::bench {

enum ExitCode { exit_ok = 0, exit_error = 1, exit_slow = 2, exit_timeout = 3, exit_wrong = 7 };

/// Runs a command line on all ranks of MPI_COMM_WORLD, and returns the exit code, the same on every rank. `mpi_calls`
/// returns the number of this process's MPI calls. Errors: Error for a failure that the ranks could not agree on.
int run(int argc, const char* const* argv, const std::function<std::int64_t()>& mpi_calls);

}  // namespace kolo::bench
