#pragma once

#include <cstdint>
#include <functional>

namespace kolo::bench {

enum ExitCode { exit_ok = 0, exit_error = 1, exit_slow = 2, exit_timeout = 3, exit_wrong = 7 };

/// Does what a command line asks for, on all ranks of MPI_COMM_WORLD, and returns the exit code, on every rank the
/// same. `mpi_calls` counts those of this process. Errors: Error if something failed that could not be agreed on.
int run(int argc, const char* const* argv, const std::function<std::int64_t()>& mpi_calls);

}  // namespace kolo::bench
