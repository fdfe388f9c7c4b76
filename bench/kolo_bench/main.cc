// kolo-bench: how fast ranks exchange data, through kolo and through MPI.

#include <mpi.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <exception>
#include <thread>

#include "apps/cli/agreement.h"
#include "apps/cli/terminal.h"
#include "bench/kolo_bench/options.h"
#include "bench/kolo_bench/peers/mpi_algorithms.h"
#include "bench/kolo_bench/peers/peer.h"

namespace {

/// Ends this process after an error that could not be agreed on, without waiting for ranks that may be stuck. If all
/// have the same error, the launcher ends the others once rank 0 has printed it.
[[noreturn]] void leave(const std::exception& error) {
  if (kolo::cli::launched_rank() > 0) std::this_thread::sleep_for(std::chrono::seconds(3));
  kolo::cli::print_problem(kolo::cli::problem_of(error));
  std::quick_exit(kolo::bench::exit_error);
}

/// The options, as far as they can be read: run() will say what is wrong with others.
kolo::bench::Options options_of(int argc, char** argv) {
  try {
    return kolo::bench::parse_options(argc, argv);
  } catch (const kolo::bench::UsageError&) {
    return {};
  }
}

int mpi_level(kolo::bench::MpiThreads level) {
  constexpr int levels[] = {MPI_THREAD_SINGLE, MPI_THREAD_FUNNELED, MPI_THREAD_SERIALIZED, MPI_THREAD_MULTIPLE};
  return levels[static_cast<std::size_t>(level)];
}

}  // namespace

int main(int argc, char** argv) {
  using namespace kolo::bench;
  static char name[] = "kolo-bench";
  program_invocation_short_name = name;
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
  try {
    if (const auto text = requested_text(argc, argv)) {
      if (kolo::cli::launched_rank() == 0) kolo::cli::print(*text);
      kolo::cli::check_stdout();
      return exit_ok;
    }
    const Options options = options_of(argc, argv);
    if (options.mpi_algorithms) let_mpi_algorithms_be_forced();
    int level = MPI_THREAD_SINGLE;
    MPI_Init_thread(&argc, &argv, mpi_level(options.mpi_level()), &level);
    const int code = run(argc, argv, [] {
      count_mpi_calls();
      return mpi_calls();
    });
    MPI_Finalize();
    return code;
  } catch (const std::exception& error) {
    leave(error);
  }
}
