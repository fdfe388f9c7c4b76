#include "bench/kolo_bench/files.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "bench/kolo_bench/options.h"

namespace kolo::bench {
namespace {

namespace fs = std::filesystem;

std::string reason() {
  return std::generic_category().message(errno);
}

/// The path without links.
std::string resolved(const std::string& path) {
  std::error_code failed;
  const fs::path real = fs::weakly_canonical(path, failed);
  return failed || real.empty() ? path : real.string();
}

}  // namespace

bool same_file(const std::string& one, const std::string& other) {
  std::error_code ignored;
  return resolved(one) == resolved(other) || fs::equivalent(one, other, ignored);
}

void check_writable(const std::string& flag, const std::string& path) {
  std::error_code ignored;
  const auto refuse = [&](const std::string& why) {
    throw UsageError(fmt::format("cannot write {} ({}); give {} a file in a folder that is writable", path, why, flag));
  };
  if (fs::is_directory(path, ignored)) refuse("it is a folder");
  const fs::path folder = fs::path(path).has_parent_path() ? fs::path(path).parent_path() : fs::path(".");
  if (!fs::is_directory(folder, ignored)) refuse("there is no such folder");
  if (::access(folder.c_str(), W_OK) != 0) refuse(reason());
}

void write_whole(const std::string& wanted, const std::string& text) {
  std::error_code ignored;
  const std::string path = resolved(wanted);  // a link stays one
  const bool is_device =
      fs::exists(path, ignored) && !fs::is_regular_file(path, ignored);  // or a pipe: nothing to replace
  const std::string draft = is_device ? path : fmt::format("{}.{}.tmp", path, ::getpid());
  const auto give_up = [&] {
    const std::string why = reason();
    if (!is_device) (void)::unlink(draft.c_str());
    throw UsageError(fmt::format("cannot write {} ({}); what was measured is lost", path, why));
  };
  std::FILE* file = std::fopen(draft.c_str(), "we");
  if (!file) give_up();
  const bool written = std::fwrite(text.data(), 1, text.size(), file) == text.size() && std::fflush(file) == 0 &&
                       (is_device || ::fsync(::fileno(file)) == 0);
  const int error = errno;
  const bool closed = std::fclose(file) == 0;
  if (!written) errno = error;
  if (!written || !closed || (!is_device && std::rename(draft.c_str(), path.c_str()) != 0)) give_up();
}

}  // namespace kolo::bench
