#include "apps/cli/files.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "apps/cli/terminal.h"
#include "models/util/atomic_file.h"

namespace kolo::cli {
namespace {

namespace fs = std::filesystem;

/// Where writing to `path` would end: links are followed, the last one even if it leads to nothing yet.
fs::path target_of(fs::path path) {
  constexpr int most_links = 40;  // as Linux has it
  std::error_code error;
  for (int links = 0; links < most_links; ++links) {
    fs::path full = fs::absolute(path, error).lexically_normal();
    if (!full.has_filename()) full = full.parent_path();  // a folder's slash
    const fs::path folder = fs::weakly_canonical(full.parent_path(), error);
    path = folder / full.filename();
    const fs::path next = fs::read_symlink(path, error);
    if (error) break;  // no link
    path = folder / next;
  }
  return path;
}

[[noreturn]] void refuse(const std::string& path, const std::string& reason) {
  throw UsageError(fmt::format("cannot read {} ({}); give --config a file of lines 'flag = value'", path, reason));
}

bool is_no_text(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return byte == 0x7f || (byte < 0x20 && c != '\n' && c != '\r' && c != '\t');
}

}  // namespace

bool same_file(const std::string& one, const std::string& other) {
  std::error_code error;
  return fs::equivalent(one, other, error) || target_of(one) == target_of(other);
}

bool is_file_in(const std::string& file, const std::string& folder) {
  std::error_code error;
  return fs::is_directory(folder, error) && fs::is_regular_file(file, error) &&
         fs::equivalent(target_of(file).parent_path(), folder, error);
}

bool is_below(const std::string& path, const std::string& folder) {
  const fs::path whole = target_of(folder);
  fs::path at = target_of(path);
  while (at != whole && at.has_relative_path()) at = at.parent_path();
  return at == whole && !same_file(path, folder);
}

std::string read_config_text(const std::string& path) {
  if (path.empty()) throw UsageError("--config is ''; it takes a file of lines 'flag = value'");
  constexpr std::size_t most = 1 << 20;
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (fs::is_directory(status)) refuse(path, "it is a folder");
  if (fs::exists(status) && !fs::is_regular_file(status)) refuse(path, "it is not a regular file");
  std::ifstream file(path, std::ios::binary);
  if (!file) refuse(path, "it is missing or not readable");
  std::string text(most + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(file.gcount()));
  if (text.size() > most) refuse(path, fmt::format("it has more than {} bytes", most));
  if (constexpr std::string_view byte_order_mark = "\xef\xbb\xbf"; text.starts_with(byte_order_mark))
    text.erase(0, byte_order_mark.size());
  const auto at = std::ranges::find_if(text, is_no_text);
  if (at != text.end()) {
    refuse(path, fmt::format("it is not text: line {} has a byte 0x{:02x}", std::count(text.begin(), at, '\n') + 1,
                             static_cast<unsigned char>(*at)));
  }
  return text;
}

void check_writable(const std::string& flag, const std::string& path) {
  std::error_code ignored;
  const auto refuse_path = [&](const std::string& why) {
    throw UsageError(fmt::format("cannot write {} ({}); give {} a file in a folder that is writable", path, why, flag));
  };
  if (fs::is_directory(path, ignored)) refuse_path("it is a folder");
  const fs::path folder = fs::path(path).has_parent_path() ? fs::path(path).parent_path() : fs::path(".");
  if (!fs::is_directory(folder, ignored)) refuse_path("there is no such folder");
  if (::access(folder.c_str(), W_OK) != 0) refuse_path(std::generic_category().message(errno));
}

void write_whole(const std::string& path, const std::string& text) {
  const fs::path target = target_of(path);
  std::error_code ignored;
  if (!fs::exists(target, ignored) || fs::is_regular_file(target, ignored)) {
    models::write_atomic_file(target, text);
    return;
  }
  std::ofstream file(target, std::ios::binary);
  if (!file.write(text.data(), static_cast<std::streamsize>(text.size())).flush()) {
    models::refuse_to_write(target, std::generic_category().message(errno));
  }
}

}  // namespace kolo::cli
