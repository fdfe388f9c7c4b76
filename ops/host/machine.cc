#include "ops/host/machine.h"

#include <fmt/format.h>

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

/// Of a list such as "0-3,8"; 0 if it is none.
int cores_in(std::string_view list) {
  int cores = 0;
  for (const char* at = list.data(); at < list.data() + list.size();) {
    int first = 0, last = 0;
    const char* const end = list.data() + list.size();
    auto read = std::from_chars(at, end, first);
    if (read.ec != std::errc()) return 0;
    last = first;
    if (read.ptr < end && *read.ptr == '-') read = std::from_chars(read.ptr + 1, end, last);
    cores += last - first + 1;
    at = read.ptr + 1;
  }
  return cores;
}

}  // namespace

std::string machine_name(const std::string& root) {
  const int cores = cores_in(first_line(root + "/sys/devices/system/cpu/cpu0/cache/index3/shared_cpu_list"));
  const std::string scope = first_line(root + "/proc/sys/kernel/yama/ptrace_scope");
  return fmt::format("{}, {} cores for each third-level cache, ptrace scope {}", processor(root), cores,
                     scope.empty() ? "none" : scope);
}

}  // namespace kolo
