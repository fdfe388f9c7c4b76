#include "ops/host/machine.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <charconv>
#include <fstream>

namespace kolo {
namespace {

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::string processor(const std::string& root) {
  std::ifstream file(root + "/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const auto colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown processor";
}

/// Of a list such as "0-3,8"; none if it is no list.
std::vector<int> cores_in(std::string_view list) {
  std::vector<int> cores;
  for (const char* at = list.data(); at < list.data() + list.size();) {
    int first = 0, last = 0;
    const char* const end = list.data() + list.size();
    auto read = std::from_chars(at, end, first);
    if (read.ec != std::errc()) return {};
    last = first;
    if (read.ptr < end && *read.ptr == '-') read = std::from_chars(read.ptr + 1, end, last);
    for (int core = first; core <= last; ++core) cores.push_back(core);
    at = read.ptr + 1;
  }
  return cores;
}

/// The file that says which cores share a core's third-level cache.
std::string shared_cores(int core) {
  return fmt::format("/sys/devices/system/cpu/cpu{}/cache/index3/shared_cpu_list", core);
}

bool all_among(std::span<const int> cores, const std::vector<int>& of) {
  return std::ranges::all_of(cores, [&](int core) { return std::ranges::find(of, core) != of.end(); });
}

}  // namespace

std::string machine_name(const std::string& root) {
  const std::size_t cores = cores_in(first_line(root + shared_cores(0))).size();
  const std::string scope = first_line(root + "/proc/sys/kernel/yama/ptrace_scope");
  return fmt::format("{}, {} cores for each third-level cache, ptrace scope {}", processor(root), cores,
                     scope.empty() ? "none" : scope);
}

std::string boot_id() {
  return first_line("/proc/sys/kernel/random/boot_id");
}

Domains domains_of_cores(std::span<const int> cores, const std::string& root) {
  Domains domains;
  if (cores.empty()) return domains;
  const auto sharing = cores_in(first_line(root + shared_cores(cores.front())));
  if (all_among(cores, sharing)) domains.cache = sharing.front();
  const std::string nodes = root + "/sys/devices/system/node/";
  for (const int node : cores_in(first_line(nodes + "online"))) {
    if (all_among(cores, cores_in(first_line(fmt::format("{}node{}/cpulist", nodes, node))))) domains.memory = node;
  }
  return domains;
}

std::vector<int> own_cores() {
  std::vector<int> cores;
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return cores;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &set)) cores.push_back(core);
  }
  return cores;
}

}  // namespace kolo
