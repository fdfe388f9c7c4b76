#include "models/util/input_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "models/util/error.h"

namespace kolo::models {

InputFile::InputFile(std::filesystem::path path, std::string_view advice, bool stays_open)
    : path_(std::move(path)), advice_(advice), file_(open()) {
  struct stat status {};
  if (::fstat(file_.get(), &status) != 0) refuse(std::generic_category().message(errno));
  if (!S_ISREG(status.st_mode)) refuse("it is not a regular file");
  if (status.st_size == 0) refuse("it is empty");
  bytes_ = static_cast<std::uint64_t>(status.st_size);
  if (!stays_open) file_.reset();
}

void InputFile::read(std::uint64_t first, std::span<std::byte> to) const {
  constexpr std::size_t most = std::size_t{1} << 30;  // of one call, below what Linux reads at once
  const FileDescriptor again = file_ ? FileDescriptor() : open();
  const int file = file_ ? file_.get() : again.get();
  while (!to.empty()) {
    const ssize_t got = ::pread(file, to.data(), std::min(to.size(), most), static_cast<off_t>(first));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) refuse(std::generic_category().message(errno));
    if (got == 0) refuse(fmt::format("it ends after {} bytes, and had {}: another process has cut it", first, bytes_));
    first += static_cast<std::uint64_t>(got);
    to = to.subspan(static_cast<std::size_t>(got));
  }
}

std::string InputFile::text() const {
  constexpr std::uint64_t most = std::uint64_t{1} << 30;
  if (bytes_ > most) refuse(fmt::format("{} bytes are too many for it", bytes_));
  std::string all(bytes_, '\0');
  read(0, std::as_writable_bytes(std::span(all)));
  return all;
}

void InputFile::refuse(std::string_view reason) const {
  throw ModelError(fmt::format("cannot use {} ({}); {}", path_.string(), reason, advice_));
}

FileDescriptor InputFile::open() const {
  FileDescriptor file(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));  // a pipe is not waited for
  if (!file) refuse(std::generic_category().message(errno));
  return file;
}

}  // namespace kolo::models
