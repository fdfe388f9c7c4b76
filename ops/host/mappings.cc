#include "ops/host/mappings.h"

#include <fmt/format.h>

#include <cinttypes>
#include <cstdio>
#include <fstream>
#include <string_view>

#include <kolo/error.h>

namespace kolo {
namespace {

/// Empty: nothing is in the way.
std::string why_not_adopted(const std::byte* begin, std::size_t bytes, Adopted adopted) {
  auto next = reinterpret_cast<std::uintptr_t>(begin);
  for (const Mapping& one : mappings_of(begin, bytes, true)) {
    const auto has = [&](std::string_view flag) { return (" " + one.flags + " ").find(flag) != std::string::npos; };
    if (one.begin > next) break;
    if (has(" io ") || has(" pf ")) return "belongs to a device";
    if (adopted == Adopted::replaced) {
      if (one.permissions[3] == 's') return "is shared already";
      if (one.inode != 0) return "is a mapped file";
      if (has(" ht ")) return "has huge pages of a reserve";
      if (has(" lo ")) return "is locked in memory";
    }
    if (has(" gd ")) return "is a stack";
    if (!one.permissions.starts_with("rw")) return "cannot be read and written";
    next = one.end;
  }
  return next < reinterpret_cast<std::uintptr_t>(begin) + bytes ? "is not mapped" : "";
}

}  // namespace

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

void check_adoptable(const std::byte* begin, std::size_t bytes, Adopted adopted) {
  if (const std::string why = why_not_adopted(begin, bytes, adopted); !why.empty()) {
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("cannot adopt {} bytes: some of this memory {}; adopt ordinary memory of the program, or use "
                    "what the session allocates",
                    bytes, why));
  }
}

}  // namespace kolo
