// kolo-bench: how fast ranks exchange data, through kolo and through MPI.

#include <mpi.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <thread>

#include "bench/kolo_bench/options.h"
#include "bench/kolo_bench/peers/mpi_calls.h"
#include "bench/kolo_bench/ranks.h"
#include "bench/kolo_bench/run.h"

namespace {

/// Ends this process with a problem that could not be agreed on: no waiting for ranks that may be stuck. They may all
/// have the same one; the launcher ends them when rank 0 has failed.
[[noreturn]] void leave(const char* problem) {
  if (kolo::bench::launched_rank() > 0) std::this_thread::sleep_for(std::chrono::seconds(3));
  kolo::bench::print_problem(problem);
  std::quick_exit(kolo::bench::exit_error);
}

}  // namespace

int main(int argc, char** argv) {
  using namespace kolo::bench;
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
  if (const auto text = requested_text(argc, argv)) {
    if (launched_rank() == 0) std::fputs(text->c_str(), stdout);
    return std::fflush(stdout) == 0 && std::ferror(stdout) == 0 ? exit_ok : exit_error;
  }
  try {
    int level = MPI_THREAD_SINGLE;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
    const int code = run(argc, argv, [] {
      count_mpi_calls();
      return mpi_calls();
    });
    MPI_Finalize();
    return code;
  } catch (const std::exception& error) {
    leave(error.what());
  }
}
