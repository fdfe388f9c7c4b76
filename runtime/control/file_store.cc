#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <system_error>
#include <thread>

#include <kolo/error.h>
#include <kolo/store.h>

#include "ops/host/file_descriptor.h"
#include "runtime/control/store_checks.h"

namespace kolo {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

constexpr auto look_again = 2ms;
constexpr std::size_t longest_name = 200;  // of a file; its system allows 255

[[noreturn]] void fail_file(const std::string& what) {
  throw Error(ErrorCode::backend, fmt::format("{} ({}); a FileStore needs a folder that all its processes can write",
                                              what, std::generic_category().message(errno)));
}

/// What stands for a key: letters and digits as they are, other bytes as %XX; a folder for every 200 of them.
fs::path file_of(const fs::path& folder, std::string_view key) {
  std::string name;
  for (const char one : key) {
    const auto byte = static_cast<unsigned char>(one);
    name += std::isalnum(byte) ? std::string(1, one) : fmt::format("%{:02X}", byte);
  }
  fs::path path = folder;
  for (; name.size() > longest_name; name.erase(0, longest_name)) path /= name.substr(0, longest_name) + "+";
  return path / (name + ".value");
}

/// The value behind its length: what is shorter or longer was not written by set().
std::optional<Store::Bytes> read_value(const fs::path& path) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    if (errno == ENOENT) return std::nullopt;
    fail_file(fmt::format("cannot read {}", path.native()));
  }
  const std::string text(std::istreambuf_iterator<char>(file), {});
  std::uint64_t length = 0;
  if (text.size() >= sizeof length) std::memcpy(&length, text.data(), sizeof length);
  if (text.size() < sizeof length || text.size() - sizeof length != length)
    throw Error(ErrorCode::backend, fmt::format("{} is no value of a FileStore (it has {} bytes, of which the first "
                                                "eight say how many follow); remove the folder, and start the job anew",
                                                path.native(), text.size()));
  const auto bytes = std::as_bytes(std::span(text)).subspan(sizeof length);
  return Store::Bytes(bytes.begin(), bytes.end());
}

void write_value(const fs::path& path, std::span<const std::byte> value) {
  static std::atomic<unsigned> written{0};
  std::error_code ignored;
  fs::create_directories(path.parent_path(), ignored);
  const std::string draft = fmt::format("{}.{}.{}", path.native(), getpid(), ++written);
  const std::uint64_t length = value.size();
  std::ofstream file(draft, std::ios::binary);
  file.write(reinterpret_cast<const char*>(&length), sizeof length);
  file.write(reinterpret_cast<const char*>(value.data()), static_cast<std::streamsize>(value.size()));
  file.close();
  if (file && std::rename(draft.c_str(), path.c_str()) == 0) return;
  const int why = errno;
  (void)::unlink(draft.c_str());
  errno = why;
  fail_file(fmt::format("cannot write {}", path.native()));
}

/// Held by one process and thread at a time, until it ends.
FileDescriptor lock_folder(const fs::path& folder) {
  const fs::path path = folder / "lock";
  FileDescriptor file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
  int locked = -1;
  while (file && (locked = ::flock(file.get(), LOCK_EX)) != 0 && errno == EINTR) {
  }
  if (locked != 0) fail_file(fmt::format("cannot lock {}", path.native()));
  return file;
}

}  // namespace

FileStore::FileStore(std::string path) : path_(std::move(path)) {
  std::error_code error;
  fs::create_directories(path_, error);
  if (!fs::is_directory(path_)) {
    errno = error ? error.value() : ENOTDIR;
    fail_file(fmt::format("there is no folder '{}'", path_));
  }
}

void FileStore::set(std::string_view key, std::span<const std::byte> value) {
  check_entry(key, value.size());
  const FileDescriptor locked = lock_folder(path_);
  write_value(file_of(path_, key), value);
}

Store::Bytes FileStore::get(std::string_view key, Deadline deadline) {
  check_entry(key, 0);
  for (const fs::path path = file_of(path_, key);;) {
    if (auto value = read_value(path)) return std::move(*value);
    const auto left = deadline - std::chrono::steady_clock::now();
    if (left <= 0s) throw_no_value(key);
    std::this_thread::sleep_for(std::min<std::chrono::nanoseconds>(left, look_again));
  }
}

std::int64_t FileStore::add(std::string_view key, std::int64_t n) {
  check_entry(key, 0);
  const FileDescriptor locked = lock_folder(path_);
  const fs::path path = file_of(path_, key);
  const std::int64_t sum = added(key, read_value(path), n);
  write_value(path, std::as_bytes(std::span(&sum, 1)));
  return sum;
}

void FileStore::remove(std::string_view key) {
  check_entry(key, 0);
  const FileDescriptor locked = lock_folder(path_);
  if (::unlink(file_of(path_, key).c_str()) != 0 && errno != ENOENT && errno != ENOTDIR)
    fail_file(fmt::format("cannot remove '{}' from {}", key, path_));
}

}  // namespace kolo
