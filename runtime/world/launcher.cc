#include "runtime/world/launcher.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace kolo {
namespace {

namespace fs = std::filesystem;

/// The environment variables by which launchers number their processes.
struct Launcher {
  const char* size;
  const char* rank;
  bool needs_rank;  // where `size` alone can mean something else (a shell inside a Slurm allocation)
  const char* job;  // equal on all ranks of a job, and on no others; null: those of one parent are one job
};
constexpr std::array<Launcher, 4> launchers{{
    {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", false, "PMIX_NAMESPACE"},
    {"PMI_SIZE", "PMI_RANK", false, nullptr},
    {"SLURM_NTASKS", "SLURM_PROCID", true, "SLURM_JOB_ID"},
    {"WORLD_SIZE", "RANK", true, nullptr},
}};

const Launcher* launcher() {
  for (const Launcher& one : launchers) {
    if (std::getenv(one.size) && (!one.needs_rank || std::getenv(one.rank))) return &one;
  }
  return nullptr;
}

std::string contents(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// The value of a variable in a process's environment as /proc has it: "NAME=value", each with a zero byte behind it.
std::optional<std::string> variable_in(const std::string& environment, std::string_view name) {
  for (std::size_t at = 0; at < environment.size();) {
    const std::string_view entry(environment.c_str() + at);
    if (entry.starts_with(name) && entry.substr(name.size()).starts_with('='))
      return std::string(entry.substr(name.size() + 1));
    at += entry.size() + 1;
  }
  return std::nullopt;
}

int parent_of(const fs::path& process) {
  const std::string stat = contents(process / "stat");
  const auto name_end = stat.rfind(')');  // "pid (name) state parent …"; the name may hold anything
  return name_end == stat.npos ? 0 : std::atoi(stat.c_str() + std::min(name_end + 4, stat.size()));
}

bool same_job(const Launcher& launcher, const fs::path& process, const std::string& environment) {
  const char* const mine = launcher.job ? std::getenv(launcher.job) : nullptr;
  return mine ? variable_in(environment, launcher.job) == mine : parent_of(process) == getppid();
}

bool has_opening_thread(const fs::path& process) {
  std::error_code error;
  for (fs::directory_iterator task(process / "task", error), end; !error && task != end; task.increment(error)) {
    if (contents(task->path() / "comm") == std::string(opening_thread) + "\n") return true;
  }
  return false;
}

}  // namespace

int launched_ranks(const char** variable) {
  const Launcher* const found = launcher();
  if (!found) return 0;
  if (variable) *variable = found->size;
  return std::atoi(std::getenv(found->size));
}

int launched_rank() {
  const Launcher* const found = launcher();
  const char* const text = found ? std::getenv(found->rank) : nullptr;
  return text ? std::atoi(text) : 0;
}

std::vector<LocalRank> local_ranks() {
  const Launcher* const found = launcher();
  if (!found) return {};
  std::error_code error;
  const fs::path own_program = fs::read_symlink("/proc/self/exe", error);
  std::map<int, LocalRank> ranks;
  for (fs::directory_iterator process("/proc", error), end; !error && process != end; process.increment(error)) {
    const int pid = std::atoi(process->path().filename().c_str());
    if (pid <= 0) continue;
    const std::string environment = contents(process->path() / "environ");  // empty if the process is another user's
    const auto rank = variable_in(environment, found->rank);
    if (!rank || !same_job(*found, process->path(), environment)) continue;
    const LocalRank seen{std::atoi(rank->c_str()), pid, has_opening_thread(process->path())};
    const auto [known, is_new] = ranks.emplace(seen.rank, seen);
    // A rank may be several processes: a script and the program it runs. The one that makes a session counts.
    std::error_code gone;
    const bool likelier = seen.opening || fs::read_symlink(process->path() / "exe", gone) == own_program;
    if (!is_new && !known->second.opening && likelier) known->second = seen;
  }
  std::vector<LocalRank> result;
  for (const auto& [rank, seen] : ranks) result.push_back(seen);
  return result;
}

}  // namespace kolo
