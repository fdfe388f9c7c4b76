#include "models/util/atomic_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

namespace kolo::models {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void refuse_errno(const fs::path& path) {
  refuse_to_write(path, std::generic_category().message(errno));
}

}  // namespace

Unwritable::Unwritable(std::string problem, std::string_view advice)
    : ModelError(fmt::format("{}; {}", problem, advice)), problem_(std::move(problem)) {}

void refuse_to_write(const fs::path& path, std::string_view reason) {
  throw Unwritable(fmt::format("cannot write {} ({})", path.string(), reason),
                   "name a file in a folder that is writable and has room");
}

AtomicFile::AtomicFile(const fs::path& target) : target_(target) {
  std::error_code error;
  const fs::file_status status = fs::status(target, error);
  if (fs::exists(status) && !fs::is_regular_file(status))
    refuse_to_write(target, "it exists and is not a regular file");
  for (int attempt = 0; !file_; ++attempt) {  // a process that crashed may have left a file of our number behind
    path_ = target.string() + fmt::format(".tmp-{}-{}", ::getpid(), attempt);
    file_.reset(::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    if (!file_ && (errno != EEXIST || attempt == 100)) refuse_errno(target);
  }
}

AtomicFile::~AtomicFile() {
  if (!committed_) (void)::unlink(path_.c_str());
}

void AtomicFile::write(const void* data, std::size_t bytes) {
  const char* from = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t written = ::write(file_.get(), from, bytes);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) refuse_errno(target_);
    from += written;
    bytes -= static_cast<std::size_t>(written);
  }
}

void AtomicFile::rewrite_beginning(std::string_view bytes) {
  if (::lseek(file_.get(), 0, SEEK_SET) != 0) refuse_errno(target_);
  write(bytes.data(), bytes.size());
  if (::lseek(file_.get(), 0, SEEK_END) < 0) refuse_errno(target_);
}

void AtomicFile::commit() {
  if (::fsync(file_.get()) != 0) refuse_errno(target_);
  if (::close(file_.release()) != 0) refuse_errno(target_);
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
  const FileDescriptor file(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (file) (void)::fsync(file.get());
}

}  // namespace kolo::models
