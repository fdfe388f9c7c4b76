#include "runtime/world/launcher.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

#include <kolo/error.h>

namespace kolo {
namespace {

namespace fs = std::filesystem;

/// The environment variables by which launchers number their processes.
struct Launcher {
  const char* size;
  const char* rank;
  bool needs_rank;    // where `size` alone can mean something else (a shell inside a Slurm allocation)
  const char* needs;  // another variable, without which these mean something else; null: none
  const char* job;    // equal on all ranks of a job, and on no others; null: those of one parent are one job
  bool by_mpi;
};
/// In this order: what starts ranks is often started by something else, and inherits its variables.
constexpr std::array<Launcher, 5> launchers{{
    {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", false, nullptr, "PMIX_NAMESPACE", true},
    {"PMI_SIZE", "PMI_RANK", false, nullptr, nullptr, true},
    {"SLURM_NTASKS", "SLURM_PROCID", true, "PMIX_RANK", "SLURM_JOB_ID", true},
    {"WORLD_SIZE", "RANK", true, nullptr, "TORCHELASTIC_RUN_ID", false},
    {"SLURM_NTASKS", "SLURM_PROCID", true, nullptr, "SLURM_JOB_ID", true},
}};
constexpr const Launcher& torchrun = launchers[3];

bool says_something(const Launcher& one) {
  return std::getenv(one.size) && (!one.needs_rank || std::getenv(one.rank)) && (!one.needs || std::getenv(one.needs));
}

const Launcher* launcher() {
  const auto found = std::ranges::find_if(launchers, says_something);
  return found == launchers.end() ? nullptr : &*found;
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

/// A whole number from 0 on, and nothing else.
std::optional<int> number_in(std::string_view text) {
  int number = -1;
  const auto [last, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool is_number = error == std::errc() && last == text.data() + text.size() && number >= 0;
  return is_number ? std::optional(number) : std::nullopt;
}

/// What the launcher says in a variable of this process. Throws Error{invalid_argument} if that is no number.
int launcher_says(const char* variable) {
  const char* const text = std::getenv(variable);
  if (!text) return 0;
  if (const auto number = number_in(text)) return *number;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("{} is '{}'; a launcher sets it to a number: start the program with one, or unset it",
                          variable, text));
}

/// Of "pid (name) state parent …" what begins with the state, a letter; the name may hold anything. Empty if the
/// process has ended.
std::string state_of(const fs::path& process) {
  const std::string stat = contents(process / "stat");
  const auto name_end = stat.rfind(") ");
  return name_end == stat.npos ? "" : stat.substr(name_end + 2);
}

int parent_of(const fs::path& process) {
  const std::string state = state_of(process);
  if (state.size() < 2) return 0;
  const std::string_view rest = std::string_view(state).substr(2);
  return number_in(rest.substr(0, rest.find(' '))).value_or(0);
}

bool is_stopped(const fs::path& process) {
  const std::string state = state_of(process);
  return state.starts_with('T') || state.starts_with('t');
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

Launched launched() {
  Launched result;
  const Launcher* const found = launcher();
  if (!found) return result;
  result.variable = found->size;
  result.ranks = launcher_says(found->size);
  result.rank = launcher_says(found->rank);
  const auto refuse = [](const std::string& what) {
    throw Error(ErrorCode::invalid_argument,
                what + "; start the program with one launcher, or unset what another one has left");
  };
  if (result.ranks == 0) refuse(fmt::format("{} is 0, but a job has at least one rank", found->size));
  if (result.rank >= result.ranks)
    refuse(fmt::format("{} is {}, but {} is {}", found->rank, result.rank, found->size, result.ranks));
  if (found != &torchrun && says_something(torchrun)) {
    const int ranks = launcher_says(torchrun.size), rank = launcher_says(torchrun.rank);
    if (ranks != result.ranks || rank != result.rank) {
      refuse(fmt::format("{} and {} say rank {} of {}, {} and {} say rank {} of {}", found->rank, found->size,
                         result.rank, result.ranks, torchrun.rank, torchrun.size, rank, ranks));
    }
  }
  const char* const address = std::getenv("MASTER_ADDR");
  result.address = address ? address : "";
  result.port = launcher_says("MASTER_PORT");
  const bool can_meet = !result.address.empty() && result.port > 0 && result.port <= 65535;
  result.by_mpi = found->by_mpi && (found != &launchers.back() || !can_meet);
  if (result.by_mpi) return result;
  if (result.ranks > 1 && !can_meet) {
    refuse(fmt::format("{} is {}, but MASTER_ADDR is '{}' and MASTER_PORT is {}, where the ranks were to meet",
                       found->size, result.ranks, result.address, result.port));
  }
  const int local_rank = launcher_says("LOCAL_RANK");
  if (found == &torchrun && local_rank > result.rank)
    refuse(fmt::format("LOCAL_RANK is {}, but RANK is {}", local_rank, result.rank));
  return result;
}

std::vector<LocalRank> local_ranks() {
  const Launcher* const found = launcher();
  if (!found) return {};
  std::error_code error;
  const fs::path own_program = fs::read_symlink("/proc/self/exe", error);
  std::map<int, LocalRank> ranks;
  for (fs::directory_iterator process("/proc", error), end; !error && process != end; process.increment(error)) {
    const int pid = number_in(process->path().filename().native()).value_or(0);
    if (pid == 0) continue;
    const std::string environment = contents(process->path() / "environ");  // empty if the process is another user's
    const auto rank = variable_in(environment, found->rank);
    const auto number = rank ? number_in(*rank) : std::nullopt;
    if (!number || !same_job(*found, process->path(), environment)) continue;
    const LocalRank seen{*number, pid, has_opening_thread(process->path()), is_stopped(process->path())};
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
