#pragma once

#include <span>
#include <string>
#include <vector>

namespace kolo {

/// What measurements on this machine hold for: processor, cores that share a cache, who may read whose memory. One
/// line. `root`: of the file system to read it from, for tests.
std::string machine_name(const std::string& root = "");

/// Of the running system: equal for processes on one machine, in whichever containers; empty if it is not known.
std::string boot_id();

/// The third-level cache, and the memory (NUMA node), next to all of some cores: numbers of this machine's. -1: there
/// is none, or nothing is known.
struct Domains {
  int cache = -1;
  int memory = -1;
};
Domains domains_of_cores(std::span<const int> cores, const std::string& root = "");

/// Those that this thread may run on.
std::vector<int> own_cores();

}  // namespace kolo
