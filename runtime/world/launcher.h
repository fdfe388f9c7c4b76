#pragma once

#include <string>
#include <vector>

namespace kolo {

/// What the launcher's environment says of this process.
struct Launched {
  int ranks = 0;  ///< 0 without a launcher
  int rank = 0;
  std::string variable;  ///< that has the number of ranks
  bool by_mpi = true;    ///< else MPI need not be there: the ranks meet through a store
  /// Where the ranks can meet through a store; empty and 0 if that is not said.
  std::string address;
  int port = 0;
};

/// Reads the variables of Open MPI, then those of PMI and of srun with PMIx, then those of torchrun, then those of srun
/// without PMIx. Throws Error{invalid_argument} if a variable is malformed, or contradicts another one.
Launched launched();

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
