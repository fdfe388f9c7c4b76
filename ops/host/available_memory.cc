#include <algorithm>
#include <cstdint>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>

#include <kolo/memory.h>

namespace kolo {
namespace {

constexpr auto unlimited = std::numeric_limits<std::size_t>::max();

/// The number behind a key at the start of a line, or at the start of the file if the key is empty.
std::optional<std::size_t> number_in(const std::string& path, const std::string& key = "") {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string word;
    std::size_t number = 0;
    if (!key.empty() && (!(words >> word) || word != key)) continue;
    if (words >> number) return number;
    return std::nullopt;  // "max"
  }
  return std::nullopt;
}

/// What the files and lines are called in which a version of control groups says these things.
struct GroupFiles {
  const char* mount;
  const char* limit;
  const char* usage;
  const char* cached[2];  // lines of memory.stat; without shared memory, which cannot be dropped
};
constexpr GroupFiles version_1{"/sys/fs/cgroup/memory",
                               "/memory.limit_in_bytes",
                               "/memory.usage_in_bytes",
                               {"total_active_file", "total_inactive_file"}};
constexpr GroupFiles version_2{"/sys/fs/cgroup", "/memory.max", "/memory.current", {"active_file", "inactive_file"}};

/// What is left below a group's limit; what the group caches of files counts as free.
std::size_t left_in(const std::string& group, const GroupFiles& files) {
  const auto limit = number_in(group + files.limit), usage = number_in(group + files.usage);
  if (!limit || !usage) return unlimited;
  std::size_t used = *usage;
  for (const char* key : files.cached) used -= std::min(used, number_in(group + "/memory.stat", key).value_or(0));
  return *limit - std::min(*limit, used);
}

/// Over the group of this process and all groups around it; `path` is "/a/b" below `mount`.
std::size_t left_in_groups(const std::string& mount, std::string path, const GroupFiles& files) {
  std::size_t left = unlimited;
  for (;; path.erase(path.rfind('/'))) {
    left = std::min(left, left_in(mount + path, files));
    if (path.empty() || path.rfind('/') == path.npos) return left;
  }
}

}  // namespace

std::size_t available_memory(const std::string& root) {
  std::size_t available = unlimited;
  if (const auto kilobytes = number_in(root + "/proc/meminfo", "MemAvailable:")) available = *kilobytes * 1024;
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // "0::/a/b" of version 2, "9:memory:/a/b" of version 1
    const auto second = line.find(':', line.find(':') + 1);
    if (second == line.npos) continue;
    const std::string controllers = line.substr(line.find(':') + 1, second - line.find(':') - 1);
    std::string path = line.substr(second + 1);
    if (path == "/") path.clear();
    if (controllers.empty()) available = std::min(available, left_in_groups(root + version_2.mount, path, version_2));
    if (controllers == "memory")
      available = std::min(available, left_in_groups(root + version_1.mount, path, version_1));
  }
  return available;
}

}  // namespace kolo
