#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <map>
#include <stdexcept>

namespace kolo::testing {

/// Memory of pretended devices: whoever touches it while it is not open dies by a signal. Of one thread.
class GuardedMemory {
 public:
  /// In pages.
  static std::size_t whole(std::size_t bytes) {
    constexpr std::size_t page = 4096;
    return (bytes + page - 1) / page * page;
  }

  /// Whole pages, closed, of zeros; null if there are none.
  void* allocate(std::size_t bytes) {
    void* const memory = ::mmap(nullptr, whole(bytes), closed(), MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return nullptr;
    areas_[memory] = bytes;
    return memory;
  }
  void release(void* memory) noexcept {
    const auto area = areas_.find(memory);
    ::munmap(memory, whole(area->second));
    areas_.erase(area);
  }

  /// What was asked for and is held at the moment.
  std::size_t bytes() const {
    std::size_t sum = 0;
    for (const auto& [begin, bytes] : areas_) sum += bytes;
    return sum;
  }

  /// False: it is always open, which is faster. Only while nothing is held.
  void guard(bool guarded) { guarded_ = guarded; }

  /// Lets what a device does at the memory.
  class Open {
   public:
    explicit Open(GuardedMemory& memory) : memory_(memory) { memory_.protect(PROT_READ | PROT_WRITE); }
    ~Open() { memory_.protect(PROT_NONE); }
    Open(const Open&) = delete;
    Open& operator=(const Open&) = delete;

   private:
    GuardedMemory& memory_;
  };

 private:
  int closed() const { return guarded_ ? PROT_NONE : PROT_READ | PROT_WRITE; }
  void protect(int how) {
    if (!guarded_) return;
    for (const auto& [begin, bytes] : areas_) {
      if (::mprotect(begin, whole(bytes), how) != 0) throw std::runtime_error("memory cannot be guarded");
    }
  }

  std::map<void*, std::size_t> areas_;  // bytes, by begin
  bool guarded_ = true;
};

}  // namespace kolo::testing
