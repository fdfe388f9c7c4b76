#include "models/util/atomic_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "models/util/error.h"

namespace kolo::models {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void refuse_errno(const fs::path& path) {
  refuse_to_write(path, std::generic_category().message(errno));
}

}  // namespace

void refuse_to_write(const fs::path& path, std::string_view reason) {
  throw ModelError(fmt::format("cannot write {} ({}); name a file in a folder that is writable and has room",
                               path.string(), reason));
}

AtomicFile::AtomicFile(const fs::path& target) : target_(target) {
  std::error_code error;
  const fs::file_status status = fs::status(target, error);
  if (fs::exists(status) && !fs::is_regular_file(status))
    refuse_to_write(target, "it exists and is not a regular file");
  for (int attempt = 0; fd_ < 0; ++attempt) {  // a process that crashed may have left a file of our number behind
    path_ = target.string() + fmt::format(".tmp-{}-{}", ::getpid(), attempt);
    fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd_ < 0 && (errno != EEXIST || attempt == 100)) refuse_errno(target);
  }
}

AtomicFile::~AtomicFile() {
  if (fd_ >= 0) (void)::close(fd_);
  if (!committed_) (void)::unlink(path_.c_str());
}

void AtomicFile::write(const void* data, std::size_t bytes) {
  const char* from = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t written = ::write(fd_, from, bytes);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) refuse_errno(target_);
    from += written;
    bytes -= static_cast<std::size_t>(written);
  }
}

void AtomicFile::commit() {
  if (::fsync(fd_) != 0) refuse_errno(target_);
  const int fd = fd_;
  fd_ = -1;
  if (::close(fd) != 0) refuse_errno(target_);
  if (::rename(path_.c_str(), target_.c_str()) != 0) refuse_errno(target_);
  committed_ = true;
  sync_folder(target_.has_parent_path() ? target_.parent_path() : fs::path("."));
}

void write_atomic_file(const fs::path& target, std::string_view text) {
  AtomicFile file(target);
  file.write(text.data(), text.size());
  file.commit();
}

void sync_folder(const fs::path& folder) {
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;
  (void)::fsync(fd);
  (void)::close(fd);
}

}  // namespace kolo::models
