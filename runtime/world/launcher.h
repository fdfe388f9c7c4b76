#pragma once

#include <vector>

namespace kolo {

/// The number of ranks in the launcher's environment; 0 without a launcher. `variable`, if given, receives the name of
/// the environment variable.
int launched_ranks(const char** variable = nullptr);

/// This process's rank in the launcher's environment; 0 without a launcher.
int launched_rank();

/// A rank of this job on this node, as /proc shows it.
struct LocalRank {
  int rank = 0;  ///< the launcher's
  int pid = 0;
  bool opening = false;  ///< one of its threads has the name `opening_thread`
  bool stopped = false;  ///< by a signal or a debugger
};

/// The name of the thread that lives while a process makes a session: before MPI is initialised, only this name shows
/// other processes that it has begun to.
inline constexpr const char* opening_thread = "kolo-opening";

/// The ranks of this job with processes on this node, this one included. Takes milliseconds; empty without a
/// launcher.
std::vector<LocalRank> local_ranks();

}  // namespace kolo
