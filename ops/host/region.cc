#include "ops/host/region.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include <kolo/error.h>
#include <kolo/memory.h>

namespace kolo {
namespace {

[[noreturn]] void fail(const std::string& what) {
  throw Error(ErrorCode::backend, fmt::format("{} ({})", what, std::strerror(errno)));
}

/// Pages that exist already are mapped at once, not when they are touched first.
std::byte* map(int descriptor, std::size_t bytes, int flags) {
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, descriptor, 0);
  return data == MAP_FAILED ? nullptr : static_cast<std::byte*>(data);
}

class HeapRegion final : public Region {
 public:
  explicit HeapRegion(std::size_t bytes) : data_(map(-1, bytes, MAP_PRIVATE | MAP_ANONYMOUS)), size_(bytes) {
    if (!data_) fail(fmt::format("cannot allocate {} bytes for ranks in threads", bytes));
  }
  ~HeapRegion() override { munmap(data_, size_); }
  std::byte* data() const override { return data_; }
  std::size_t size() const override { return size_; }

 private:
  std::byte* data_;
  std::size_t size_;
};

}  // namespace

std::shared_ptr<Region> heap_region(std::size_t bytes) {
  return std::make_shared<HeapRegion>(bytes);
}

std::shared_ptr<SharedRegion> SharedRegion::create(std::size_t bytes) {
  if (const std::size_t available = available_memory();
      bytes > available) {  // the kernel would kill somebody to make room
    throw Error(ErrorCode::backend,
                fmt::format("cannot reserve {} bytes of shared memory ({} are available); ask for less, or run fewer "
                            "ranks on this machine",
                            bytes, available));
  }
  const int descriptor = memfd_create("kolo", MFD_CLOEXEC);
  if (descriptor < 0) fail("cannot make shared memory with memfd_create");
  const int reserved = posix_fallocate(descriptor, 0, static_cast<off_t>(bytes));
  std::byte* data = reserved == 0 ? map(descriptor, bytes, MAP_SHARED | MAP_POPULATE) : nullptr;
  if (!data) {
    if (reserved != 0) errno = reserved;
    const int error = errno;
    close(descriptor);
    errno = error;
    fail(fmt::format("cannot reserve {} bytes of shared memory", bytes));
  }
  return std::shared_ptr<SharedRegion>(new SharedRegion(data, bytes, descriptor));
}

std::shared_ptr<SharedRegion> SharedRegion::open(int pid, int descriptor, std::size_t bytes) {
  const std::string path = fmt::format("/proc/{}/fd/{}", pid, descriptor);
  const int mine = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (mine < 0) fail(fmt::format("cannot open {}", path));
  std::byte* data = map(mine, bytes, MAP_SHARED | MAP_POPULATE);
  if (!data) {
    const int error = errno;
    close(mine);
    errno = error;
    fail(
        fmt::format("there is no room to reach {} bytes of another rank's tensors, those of process {}; use less "
                    "memory in each rank, or "
                    "fewer ranks on this machine",
                    bytes, pid));
  }
  return std::shared_ptr<SharedRegion>(new SharedRegion(data, bytes, mine));
}

SharedRegion::~SharedRegion() {
  munmap(data_, size_);
  close_descriptor();
}

void SharedRegion::close_descriptor() {
  if (descriptor_ >= 0) close(descriptor_);
  descriptor_ = -1;
}

}  // namespace kolo
