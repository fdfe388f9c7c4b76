#include "models/checkpoint/folder_lock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <system_error>
#include <thread>

#include "models/util/atomic_file.h"
#include "models/util/error.h"

namespace kolo::models {
namespace {

using Clock = std::chrono::steady_clock;

/// Returns whether it was had before the time was up.
bool lock_within(int fd, Clock::duration patience) {
  const auto deadline = Clock::now() + patience;
  while (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
    if (errno == EINTR) continue;
    if (errno != EWOULDBLOCK) return true;  // a file system without locks
    if (Clock::now() >= deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return true;
}

[[noreturn]] void refuse_folder(const std::filesystem::path& folder, const std::error_code& error) {
  throw ModelError(fmt::format("cannot write to {} ({}); name a folder that is writable and has room", folder.string(),
                               error.message()));
}

}  // namespace

FolderLock::FolderLock(const std::filesystem::path& folder) {
  constexpr std::chrono::seconds patience{8};
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) refuse_folder(folder, error);
  fd_ = ::open((folder / ".lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (fd_ < 0) refuse_to_write(folder / ".lock", std::generic_category().message(errno));
  if (lock_within(fd_, patience)) return;
  (void)::close(fd_);
  throw ModelError(
      fmt::format("{} is in use by another run; wait until that has ended, or name another folder", folder.string()));
}

FolderLock::~FolderLock() {
  (void)::close(fd_);
}

}  // namespace kolo::models
