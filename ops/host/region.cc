#include "ops/host/region.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string>
#include <string_view>
#include <system_error>

#include <kolo/error.h>
#include <kolo/memory.h>

#include "ops/host/mappings.h"

namespace kolo {
namespace {

[[noreturn]] void fail(const std::string& what) {
  throw Error(ErrorCode::backend, fmt::format("{} ({})", what, std::generic_category().message(errno)));
}

/// Pages that exist already are mapped at once, not when they are touched first.
std::byte* map(int descriptor, std::size_t bytes, int flags) {
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, descriptor, 0);
  return data == MAP_FAILED ? nullptr : static_cast<std::byte*>(data);
}

/// Takes the memory of a new file, and maps it; in huge pages if it is large and the system gives them to those who
/// ask. Null, and errno, if there is not enough.
std::byte* take(int descriptor, std::size_t bytes) {
  constexpr std::size_t large = 4 << 20;
  if (bytes >= large) {
    if (ftruncate(descriptor, static_cast<off_t>(bytes)) != 0) return nullptr;
    std::byte* const data = map(descriptor, bytes, MAP_SHARED);
    if (!data) return nullptr;
    (void)madvise(data, bytes, MADV_HUGEPAGE);
    if (madvise(data, bytes, MADV_POPULATE_WRITE) == 0) return data;
    const int why = errno;
    munmap(data, bytes);
    errno = why == EFAULT ? ENOMEM : why;
    if (why != EINVAL) return nullptr;  // else an old system
  }
  const int reserved = posix_fallocate(descriptor, 0, static_cast<off_t>(bytes));
  if (reserved != 0) errno = reserved;
  return reserved == 0 ? map(descriptor, bytes, MAP_SHARED | MAP_POPULATE) : nullptr;
}

bool is_file(int descriptor, std::uint32_t file, std::size_t bytes) {
  struct stat status {};
  return fstat(descriptor, &status) == 0 && static_cast<std::uint32_t>(status.st_ino) == file &&
         static_cast<std::size_t>(status.st_size) >= bytes;
}

class HeapRegion final : public Region {
 public:
  explicit HeapRegion(std::size_t bytes) : data_(map(-1, bytes, MAP_PRIVATE | MAP_ANONYMOUS)), size_(bytes) {
    if (!data_) fail(fmt::format("cannot allocate {} bytes for ranks in threads", bytes));
  }
  ~HeapRegion() override { munmap(data_, size_); }
  std::byte* data() const override { return data_; }
  std::size_t size() const override { return size_; }
  bool reserve(std::size_t, std::size_t) override { return true; }

 private:
  std::byte* data_;
  std::size_t size_;
};

}  // namespace

std::shared_ptr<Region> heap_region(std::size_t bytes) {
  return std::make_shared<HeapRegion>(bytes);
}

std::shared_ptr<SharedRegion> SharedRegion::create(std::size_t bytes, Reserved when) {
  if (const std::size_t available = when == Reserved::now ? available_memory() : bytes;
      bytes > available) {  // the kernel would kill a process to make room
    throw Error(ErrorCode::backend,
                fmt::format("cannot reserve {} bytes of shared memory ({} are available); ask for less, or run fewer "
                            "ranks on this machine",
                            bytes, available));
  }
  FileDescriptor descriptor(memfd_create("kolo", MFD_CLOEXEC));
  if (!descriptor) fail("cannot make shared memory with memfd_create");
  std::byte* data = nullptr;
  if (when == Reserved::now) {
    data = take(descriptor.get(), bytes);
  } else if (ftruncate(descriptor.get(), static_cast<off_t>(bytes)) == 0) {
    data = map(descriptor.get(), bytes, MAP_SHARED);
  }
  if (!data) fail(fmt::format("cannot reserve {} bytes of shared memory", bytes));
  return std::shared_ptr<SharedRegion>(new SharedRegion(data, bytes, std::move(descriptor)));
}

bool SharedRegion::reserve(std::size_t offset, std::size_t bytes) {
  return bytes <= available_memory() && madvise(data_ + offset, bytes, MADV_POPULATE_WRITE) == 0;
}

std::shared_ptr<SharedRegion> SharedRegion::open(int pid, int descriptor, std::uint32_t file, std::size_t bytes,
                                                 Reserved when) {
  const std::string path = fmt::format("/proc/{}/fd/{}", pid, descriptor);
  std::array<char, 64> target{};  // looked at first: to open a device may have effects
  const auto length = readlink(path.c_str(), target.data(), target.size());
  if (length < 0) fail(fmt::format("cannot open {}", path));
  const bool is_memory = std::string_view(target.data(), static_cast<std::size_t>(length)).starts_with("/memfd:kolo");
  FileDescriptor mine(is_memory ? ::open(path.c_str(), O_RDWR | O_CLOEXEC) : -1);
  if (is_memory && !mine) fail(fmt::format("cannot open {}", path));
  if (!is_memory || !is_file(mine.get(), file, bytes)) {
    throw Error(ErrorCode::backend,
                fmt::format("{} is not the memory of the rank with that process number; ranks of a node must see the "
                            "same processes: start them in one PID namespace, or set KOLO_BACKEND=mpi",
                            path));
  }
  std::byte* data = map(mine.get(), bytes, when == Reserved::now ? MAP_SHARED | MAP_POPULATE : MAP_SHARED);
  if (!data) {
    fail(
        fmt::format("there is no room to reach {} bytes of another rank's tensors, those of process {}; use less "
                    "memory in each rank, or "
                    "fewer ranks on this machine",
                    bytes, pid));
  }
  return std::shared_ptr<SharedRegion>(new SharedRegion(data, bytes, std::move(mine)));
}

std::uint32_t SharedRegion::file() const {
  struct stat status {};
  if (fstat(descriptor_.get(), &status) != 0) fail("cannot look at shared memory");
  return static_cast<std::uint32_t>(status.st_ino);
}

std::shared_ptr<SharedRegion> SharedRegion::adopt(std::byte* begin, std::size_t bytes) {
  check_adoptable(begin, bytes, Adopted::replaced);
  auto region = create(bytes);
  std::memcpy(region->data_, begin, bytes);
  if (mremap(region->data_, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, begin) == MAP_FAILED)
    fail(fmt::format("cannot adopt {} bytes", bytes));
  region->data_ = begin;
  region->adopted_ = true;
  return region;
}

/// Where there is no memory for a private copy the pages stay as they are: shared with nobody any more.
void SharedRegion::give_back() noexcept try {
  const auto begin = reinterpret_cast<std::uintptr_t>(data_);
  struct stat status {};
  if (fstat(descriptor_.get(), &status) != 0) return;
  for (const Mapping& one : mappings_of(data_, size_, false)) {
    if (one.inode != status.st_ino) continue;  // the program has unmapped it, and may have something else there
    const auto first = std::max(one.begin, begin), last = std::min(one.end, begin + size_);
    std::byte* const copy = map(-1, last - first, MAP_PRIVATE | MAP_ANONYMOUS);
    if (!copy) continue;
    std::memcpy(copy, reinterpret_cast<const std::byte*>(first), last - first);
    if (mremap(copy, last - first, last - first, MREMAP_MAYMOVE | MREMAP_FIXED, reinterpret_cast<void*>(first)) ==
        MAP_FAILED)
      munmap(copy, last - first);
  }
} catch (...) {  // no memory for the list
}

SharedRegion::~SharedRegion() {
  adopted_ ? give_back() : void(munmap(data_, size_));
}

}  // namespace kolo
