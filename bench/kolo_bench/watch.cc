#include "bench/kolo_bench/watch.h"

#include <fmt/format.h>
#include <mpi.h>
#include <unistd.h>

#include <chrono>

#include "apps/cli/terminal.h"
#include "bench/kolo_bench/options.h"

namespace kolo::bench {

Watch::Watch(double seconds, int rank) : seconds_(seconds), rank_(rank) {
  if (seconds > 0) thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
}

void Watch::begin(std::string what) {
  {
    const std::lock_guard lock(mutex_);
    what_ = std::move(what);
    ++number_;
  }
  begun_.notify_all();
}

void Watch::run(const std::stop_token& stop) {
  constexpr std::chrono::seconds for_the_others{1};  // to report theirs
  std::unique_lock lock(mutex_);
  while (!stop.stop_requested()) {
    const auto number = number_;
    const bool moved =
        begun_.wait_for(lock, stop, std::chrono::duration<double>(seconds_), [&] { return number_ != number; });
    if (moved || stop.stop_requested()) continue;
    cli::print_problem(
        fmt::format("rank {} (pid {}) was at {} for more than {:g} s (-T)", rank_, ::getpid(), what_, seconds_));
    std::this_thread::sleep_for(for_the_others);
    // Whatever MPI's thread level: there is nothing left to disturb.
    MPI_Abort(MPI_COMM_WORLD, exit_timeout);
  }
}

}  // namespace kolo::bench
