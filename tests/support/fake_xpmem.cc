// A libxpmem.so.0 that needs no module. What a process shows becomes a file in memory, mapped where it was; others map
// that through /proc. The folder FAKE_XPMEM_FOLDER has a file for each id, which says where to find it. As with the
// module, whoever reads what is shown no more gets SIGBUS; but pages of a process that was killed stay.
//
// FAKE_XPMEM_FAIL=CALL:N does what fake_xpmem_fail() does. When a process ends, FAKE_XPMEM_FOLDER/counts.PID has what
// it did.

#include "tests/support/fake_xpmem.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <mutex>
#include <string>

namespace {

struct Range {
  void* begin = nullptr;
  std::size_t bytes = 0;
  int file = -1;
};

std::string path_of(std::int64_t id) {
  const char* const folder = std::getenv("FAKE_XPMEM_FOLDER");
  return (folder ? std::string(folder) : "/nowhere") + "/" + std::to_string(id);
}

class Fake {
 public:
  Fake() {
    const char* const fails = std::getenv("FAKE_XPMEM_FAIL");
    if (!fails) return;
    const std::string text = fails;
    const auto colon = text.find(':');
    fail_from(text.substr(0, colon), colon == std::string::npos ? 0 : std::stoi(text.substr(colon + 1)));
  }
  ~Fake() {
    if (counts_.made + counts_.got == 0) return;
    const FakeXpmemCounts& c = counts_;
    std::ofstream(path_of(0).substr(0, path_of(0).size() - 1) + "counts." + std::to_string(getpid()))
        << "made " << c.made << " removed " << c.removed << " got " << c.got << " released " << c.released
        << " attached " << c.attached << " detached " << c.detached << " large " << large_ << "\n";
  }

  std::mutex mutex;

  FakeXpmemCounts counts() const { return counts_; }
  void fail_from(const std::string& call, int successes) {
    failing_ = call;
    left_ = successes;
  }

  std::int64_t make(void* begin, std::size_t bytes) {
    if (reinterpret_cast<std::uintptr_t>(begin) % 4096 != 0 || bytes == 0 || bytes % 4096 != 0) return refuse(EINVAL);
    if (fails("make")) return refuse(EBUSY);
    Range range{begin, bytes, memfd_create("fake_xpmem", MFD_CLOEXEC)};
    if (range.file < 0) return -1;
    const std::int64_t id = (static_cast<std::int64_t>(getpid()) << 32) + ++last_;
    std::ofstream said(path_of(id));
    said << range.file << ' ' << bytes << std::endl;
    const bool replaced = said && pwrite(range.file, begin, bytes, 0) == static_cast<ssize_t>(bytes) &&
                          mmap(begin, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, range.file, 0) == begin;
    if (!replaced) {
      close(range.file);
      return refuse(ENOMEM);
    }
    shown_[id] = range;
    ++counts_.made;
    return id;
  }

  int remove(std::int64_t id) {
    const auto found = shown_.find(id);
    if (id >> 32 != getpid() || found == shown_.end()) return refuse(EACCES);
    const Range range = found->second;
    if (msync(range.begin, range.bytes, MS_ASYNC) == 0) {  // else the program has unmapped some of it
      void* const copy = mmap(nullptr, range.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      std::memcpy(copy, range.begin, range.bytes);
      mremap(copy, range.bytes, range.bytes, MREMAP_MAYMOVE | MREMAP_FIXED, range.begin);
    }
    if (fails("remove")) return refuse(EINTR);  // the program has its own pages all the same
    if (ftruncate(range.file, 0) != 0) std::abort();
    close(range.file);
    unlink(path_of(id).c_str());
    shown_.erase(found);
    ++counts_.removed;
    return 0;
  }

  std::int64_t get(std::int64_t id) {
    if (fails("get")) return refuse(EACCES);
    Range range;
    if (!(std::ifstream(path_of(id)) >> range.file >> range.bytes)) return refuse(ENOENT);
    range.file = open(("/proc/" + std::to_string(id >> 32) + "/fd/" + std::to_string(range.file)).c_str(), O_RDWR);
    if (range.file < 0) return refuse(ENOENT);
    permits_[++last_] = range;
    ++counts_.got;
    return last_;
  }

  int release(std::int64_t permit) {
    const auto found = permits_.find(permit);
    if (found == permits_.end()) return refuse(EINVAL);
    if (fails("release")) return refuse(EINTR);
    close(found->second.file);
    permits_.erase(found);
    ++counts_.released;
    return 0;
  }

  void* attach(std::int64_t permit, std::int64_t offset, std::size_t bytes) {
    const auto found = permits_.find(permit);
    if (found == permits_.end() || offset % 4096 != 0 || static_cast<std::size_t>(offset) + bytes > found->second.bytes)
      return refuse(EINVAL), MAP_FAILED;
    if (fails("attach")) return refuse(ENOMEM), MAP_FAILED;
    const bool missing = fails("pages");
    const int file = missing ? memfd_create("fake_xpmem", MFD_CLOEXEC) : found->second.file;
    void* const data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, offset);
    if (missing) close(file);
    if (data == MAP_FAILED) return data;
    attached_[data] = bytes;
    ++counts_.attached;
    large_ += bytes >= 64 << 10 ? 1 : 0;
    return data;
  }

  int detach(void* data) {
    const auto found = attached_.find(data);
    if (found == attached_.end()) return refuse(EINVAL);
    if (fails("detach")) return refuse(EINTR);
    munmap(data, found->second);
    attached_.erase(found);
    ++counts_.detached;
    return 0;
  }

 private:
  static int refuse(int why) {
    errno = why;
    return -1;
  }
  bool fails(const char* call) { return failing_ == call && left_-- <= 0; }

  FakeXpmemCounts counts_{};
  int large_ = 0;  // what was attached that travels by itself
  std::map<std::int64_t, Range> shown_, permits_;
  std::map<void*, std::size_t> attached_;
  std::int64_t last_ = 0;
  std::string failing_;
  int left_ = 0;
};

Fake& fake() {
  static Fake one;
  return one;
}

constexpr int permit_mode = 1, read_write = 2;

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

struct xpmem_addr {
  std::int64_t apid;
  std::int64_t offset;
};

std::int64_t xpmem_make(void* begin, std::size_t bytes, int permit_type, void* permit_value) {
  if (permit_type != permit_mode || reinterpret_cast<std::uintptr_t>(permit_value) != 0600) return errno = EINVAL, -1;
  const std::lock_guard lock(fake().mutex);
  return fake().make(begin, bytes);
}
int xpmem_remove(std::int64_t id) {
  const std::lock_guard lock(fake().mutex);
  return fake().remove(id);
}
std::int64_t xpmem_get(std::int64_t id, int flags, int permit_type, void*) {
  if (permit_type != permit_mode || flags != read_write) return errno = EINVAL, -1;
  const std::lock_guard lock(fake().mutex);
  return fake().get(id);
}
int xpmem_release(std::int64_t permit) {
  const std::lock_guard lock(fake().mutex);
  return fake().release(permit);
}
void* xpmem_attach(xpmem_addr address, std::size_t bytes, void*) {
  const std::lock_guard lock(fake().mutex);
  return fake().attach(address.apid, address.offset, bytes);
}
int xpmem_detach(void* data) {
  const std::lock_guard lock(fake().mutex);
  return fake().detach(data);
}

FakeXpmemCounts fake_xpmem_counts() {
  const std::lock_guard lock(fake().mutex);
  return fake().counts();
}
void fake_xpmem_fail(const char* call, int successes) {
  const std::lock_guard lock(fake().mutex);
  fake().fail_from(call ? call : "", successes);
}
}
#pragma GCC visibility pop
