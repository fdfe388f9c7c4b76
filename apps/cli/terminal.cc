#include "apps/cli/terminal.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <system_error>

namespace kolo::cli {
namespace {

constexpr std::array<const char*, 4> rank_variables{"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"};

const char* rank_text() {
  for (const char* variable : rank_variables) {
    if (const char* value = std::getenv(variable)) return value;
  }
  return std::getenv("MASTER_ADDR") ? std::getenv("RANK") : nullptr;  // torchrun's
}

int stdout_error = 0;  // errno of the first failure

/// Returns what went wrong, or 0.
int write_all(int descriptor, std::string_view text) {
  while (!text.empty()) {
    const auto written = ::write(descriptor, text.data(), text.size());
    if (written >= 0) {
      text.remove_prefix(static_cast<std::size_t>(written));
    } else if (errno == EAGAIN) {  // another process made the terminal non-blocking
      pollfd wanted{descriptor, POLLOUT, 0};
      ::poll(&wanted, 1, -1);
    } else if (errno != EINTR) {
      return errno;
    }
  }
  return 0;
}

/// Bytes of the printable UTF-8 character at the start of `text`; 0 if there is none.
std::size_t printable_bytes(std::string_view text) {
  const auto byte = [&](std::size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
  const auto follows = [&](std::size_t i) { return (byte(i) & 0xc0u) == 0x80u; };
  if (byte(0) < 0x80) return byte(0) >= 0x20 && byte(0) != 0x7f ? 1 : 0;
  const bool control = byte(0) == 0xc2 && byte(1) < 0xa0;  // U+0080-9F
  if (byte(0) >= 0xc2 && byte(0) < 0xe0 && follows(1)) return control ? 0 : 2;
  if (byte(0) >= 0xe0 && byte(0) < 0xf0 && follows(1) && follows(2)) return 3;
  if (byte(0) >= 0xf0 && byte(0) < 0xf5 && follows(1) && follows(2) && follows(3)) return 4;
  return 0;
}

std::string printable(std::string_view text) {
  constexpr std::size_t longest = 2000;
  std::string result;
  while (!text.empty() && result.size() < longest) {
    const std::size_t bytes = printable_bytes(text);
    if (bytes > 0) {
      result += text.substr(0, bytes);
    } else {
      result += text[0] == '\n' ? " " : fmt::format("\\x{:02x}", static_cast<unsigned char>(text[0]));
    }
    text.remove_prefix(std::max<std::size_t>(bytes, 1));
  }
  return text.empty() ? result : result + "...";
}

}  // namespace

int launched_rank() {
  const char* const text = rank_text();
  return text ? std::atoi(text) : 0;
}

void print_problem(const std::string& problem) {
  (void)write_all(STDERR_FILENO, fmt::format("{}: {}\n", program_invocation_short_name, printable(problem)));
}

void print(const std::string& text) {
  const int error = write_all(STDOUT_FILENO, text);
  if (stdout_error == 0) stdout_error = error;
}

void check_stdout() {
  if (stdout_error == 0) return;
  throw UsageError(fmt::format("cannot write to stdout ({}); let it go to a terminal, a file with room, or /dev/null",
                               std::generic_category().message(stdout_error)));
}

bool stdout_is_watched() {
  if (!::isatty(STDOUT_FILENO)) return false;
  if (!rank_text()) return true;
  // Open MPI gives its ranks a pseudo-terminal; what counts is where mpirun, the parent, writes.
  std::error_code error;
  const auto target = std::filesystem::read_symlink(fmt::format("/proc/{}/fd/1", ::getppid()), error);
  return !error && (target.string().starts_with("/dev/pts/") || target.string().starts_with("/dev/tty"));
}

}  // namespace kolo::cli
