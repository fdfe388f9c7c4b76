#include "ops/host/mappings.h"

#include <cinttypes>
#include <cstdio>
#include <fstream>

namespace kolo {

std::vector<Mapping> mappings_of(const void* data, std::size_t bytes, bool flags) {
  const auto begin = reinterpret_cast<std::uintptr_t>(data);
  std::vector<Mapping> found;
  bool in_range = false;
  std::ifstream file(flags ? "/proc/self/smaps" : "/proc/self/maps");
  for (std::string line; std::getline(file, line);) {
    constexpr std::string_view names_flags = "VmFlags: ";
    if (line.starts_with(names_flags)) {
      if (in_range) found.back().flags = line.substr(names_flags.size());
      continue;
    }
    Mapping next;
    char permissions[5] = {};
    const int fields = std::sscanf(line.c_str(), "%" SCNxPTR "-%" SCNxPTR " %4s %*x %*x:%*x %" SCNu64, &next.begin,
                                   &next.end, permissions, &next.inode);
    if (fields != 4) continue;  // one of the figures about a mapping
    if (next.begin >= begin + bytes) break;
    in_range = next.end > begin;
    next.permissions = permissions;
    if (in_range) found.push_back(std::move(next));
  }
  return found;
}

}  // namespace kolo
