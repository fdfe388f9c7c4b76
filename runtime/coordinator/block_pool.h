#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <utility>

#include "ops/spare_blocks.h"

namespace kolo {

/// SpareBlocks for any thread.
class BlockPool {
 public:
  void* take(std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    return blocks_.take(bytes);
  }
  void give_back(void* block, std::size_t bytes) noexcept {
    const std::lock_guard lock(mutex_);
    blocks_.give_back(block, bytes);
  }

 private:
  std::mutex mutex_;
  SpareBlocks blocks_;
};

/// For std::allocate_shared(): the object keeps the pool alive.
template <class T>
class PoolAllocator {
 public:
  using value_type = T;
  explicit PoolAllocator(std::shared_ptr<BlockPool> pool) : pool_(std::move(pool)) {}
  template <class U>
  explicit PoolAllocator(const PoolAllocator<U>& other) : pool_(other.pool()) {}

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
