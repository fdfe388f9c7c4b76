#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <new>
#include <utility>

namespace kolo {

/// Memory for objects of one size that come and go by the thousand: an object gets the block of the one that went last,
/// which is likely to be in the cache. Blocks go back to the system when the pool ends. Thread-safe.
class BlockPool {
 public:
  BlockPool() = default;
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;
  ~BlockPool() {
    while (free_) ::operator delete(std::exchange(free_, free_->next));
  }

  /// A block of `bytes` bytes; the first call says how many that are, others get no pooled memory.
  void* take(std::size_t bytes) {
    {
      const std::lock_guard lock(mutex_);
      if (bytes_ == 0) bytes_ = bytes;
      if (bytes == bytes_ && free_) return std::exchange(free_, free_->next);
    }
    return ::operator new(bytes);
  }
  void give_back(void* block, std::size_t bytes) noexcept {
    const std::lock_guard lock(mutex_);
    if (bytes != bytes_) return ::operator delete(block);
    free_ = new (block) Free{free_};
  }

 private:
  struct Free {
    Free* next;
  };
  std::mutex mutex_;
  std::size_t bytes_ = 0;
  Free* free_ = nullptr;
};

/// For std::allocate_shared(): the object keeps the pool alive.
template <class T>
class PoolAllocator {
 public:
  using value_type = T;
  explicit PoolAllocator(std::shared_ptr<BlockPool> pool) : pool_(std::move(pool)) {}
  template <class U>
  PoolAllocator(const PoolAllocator<U>& other) : pool_(other.pool()) {}

  T* allocate(std::size_t count) { return static_cast<T*>(pool_->take(count * sizeof(T))); }
  void deallocate(T* block, std::size_t count) noexcept { pool_->give_back(block, count * sizeof(T)); }
  const std::shared_ptr<BlockPool>& pool() const { return pool_; }

  template <class U>
  friend bool operator==(const PoolAllocator& a, const PoolAllocator<U>& b) {
    return a.pool() == b.pool();
  }

 private:
  std::shared_ptr<BlockPool> pool_;
};

}  // namespace kolo
