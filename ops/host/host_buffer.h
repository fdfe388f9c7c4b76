#pragma once

#include <cstddef>
#include <vector>

#include <kolo/detail/unique.h>

namespace kolo {

/// Owns host memory, aligned to 64 bytes.
class HostBuffer final {
 public:
  HostBuffer() = default;
  /// Throws Error{backend}.
  explicit HostBuffer(std::size_t bytes);

  std::byte* data() const noexcept { return memory_.get(); }
  std::size_t size() const noexcept { return size_; }

  /// Forgets the memory without releasing it, when something may still write to it.
  void leak() noexcept { (void)memory_.release(); }

 private:
  struct Traits {
    using Raw = std::byte*;
    static Raw null() noexcept { return nullptr; }
    static void destroy(Raw data) noexcept;
  };
  Unique<Traits> memory_;
  std::size_t size_ = 0;
};

/// Buffers that are used in turn. What is given back is kept for the next user, the last one first.
class BufferPool final {
 public:
  /// Keeps up to `kept` buffers that nobody uses.
  explicit BufferPool(std::size_t kept) : kept_(kept) { free_.reserve(kept); }

  /// At least `bytes` bytes, allocated if none are kept. Throws Error{backend}.
  HostBuffer take(std::size_t bytes);
  void give_back(HostBuffer buffer) noexcept;
  /// Instead of giving it back, when something may still write to it.
  void leak(HostBuffer buffer) noexcept;
  /// Allocates what is missing to `count` unused buffers of `bytes` bytes; at most as many as are kept. Throws
  /// Error{backend}.
  void reserve(std::size_t count, std::size_t bytes);

  std::size_t in_use() const noexcept { return in_use_; }
  std::size_t unused() const noexcept { return free_.size(); }
  /// Of all its buffers, in use or not.
  std::size_t bytes() const noexcept { return bytes_; }

 private:
  HostBuffer make(std::size_t bytes);

  std::size_t kept_;
  std::vector<HostBuffer> free_;
  std::size_t in_use_ = 0;
  std::size_t bytes_ = 0;
};

}  // namespace kolo
