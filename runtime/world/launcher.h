#pragma once

#include <vector>

namespace kolo {

/// How many ranks the launcher's environment speaks of; 0 without a launcher. `variable`, if given, receives the name
/// of the environment variable that says so.
int launched_ranks(const char** variable = nullptr);

/// This process's rank as the launcher's environment has it; 0 without a launcher.
int launched_rank();

/// A rank of this job on this node, as the operating system shows it to everybody.
struct LocalRank {
  int rank = 0;  ///< the launcher's
  int pid = 0;
  bool opening = false;  ///< one of its threads has the name `opening_thread`
};

/// The name of a thread that lives while a process makes a session: the one sign by which others see how far it has
/// come before MPI can tell them.
inline constexpr const char* opening_thread = "kolo-opening";

/// The ranks of this job whose processes /proc shows here, this one among them. Takes milliseconds; empty without a
/// launcher.
std::vector<LocalRank> local_ranks();

}  // namespace kolo
