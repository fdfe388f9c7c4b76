#include "apps/train/terminal.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <string_view>

namespace kolo::train {
namespace {

constexpr std::array<const char*, 4> rank_variables{"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"};

const char* rank_text() {
  for (const char* variable : rank_variables) {
    if (const char* value = std::getenv(variable)) return value;
  }
  return nullptr;
}

void write_all(int descriptor, std::string_view text) {
  while (!text.empty()) {
    const auto written = ::write(descriptor, text.data(), text.size());
    if (written <= 0) return;
    text.remove_prefix(static_cast<std::size_t>(written));
  }
}

}  // namespace

int launched_rank() {
  const char* const text = rank_text();
  return text ? std::atoi(text) : 0;
}

void print_problem(const std::string& problem) {
  std::string line = problem;
  std::ranges::replace(line, '\n', ' ');
  write_all(STDERR_FILENO, fmt::format("kolo-train: {}\n", line));
}

void print(const std::string& text) {
  write_all(STDOUT_FILENO, text);
}

bool stdout_is_watched() {
  if (!::isatty(STDOUT_FILENO)) return false;
  if (!rank_text()) return true;
  // Open MPI hands its ranks a terminal of its own making; what counts is where mpirun, the parent, writes.
  std::error_code error;
  const auto target = std::filesystem::read_symlink(fmt::format("/proc/{}/fd/1", ::getppid()), error);
  return !error && (target.string().starts_with("/dev/pts/") || target.string().starts_with("/dev/tty"));
}

}  // namespace kolo::train
