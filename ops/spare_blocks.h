#pragma once

#include <cstddef>
#include <new>
#include <utility>

namespace kolo {

/// Memory for objects of one size that come and go by the thousand: an object gets the block of the one that went last,
/// which is likely to be in the cache. Blocks go back to the system when this ends. For one thread at a time.
class SpareBlocks {
 public:
  SpareBlocks() = default;
  SpareBlocks(const SpareBlocks&) = delete;
  SpareBlocks& operator=(const SpareBlocks&) = delete;
  ~SpareBlocks() {
    while (free_) ::operator delete(std::exchange(free_, free_->next));
  }

  /// A block of `bytes` bytes; the first call says how many that are, others get no spare ones.
  void* take(std::size_t bytes) {
    if (bytes_ == 0) bytes_ = bytes;
    if (bytes == bytes_ && free_) return std::exchange(free_, free_->next);
    return ::operator new(bytes);
  }
  void give_back(void* block, std::size_t bytes) noexcept {
    if (bytes != bytes_) return ::operator delete(block);
    free_ = new (block) Free{free_};
  }

 private:
  struct Free {
    Free* next;
  };
  std::size_t bytes_ = 0;
  Free* free_ = nullptr;
};

}  // namespace kolo
