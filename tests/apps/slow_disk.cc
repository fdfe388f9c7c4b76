// Put before libc by LD_PRELOAD: a disk that takes SLOW_DISK_MS for each file that the rank SLOW_DISK_RANK syncs.

#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <string_view>

extern "C" int fsync(int file) {
  const char* const rank = std::getenv("OMPI_COMM_WORLD_RANK");
  const char* const slow = std::getenv("SLOW_DISK_RANK");
  struct stat status {};
  const bool is_file = ::fstat(file, &status) == 0 && S_ISREG(status.st_mode) && status.st_size > 0;
  if (is_file && rank != nullptr && slow != nullptr && std::string_view(rank) == slow)
    (void)::usleep(static_cast<useconds_t>(std::atoi(std::getenv("SLOW_DISK_MS"))) * 1000);
  return static_cast<int>(::syscall(SYS_fsync, file));
}
