#pragma once

#include <cstddef>

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

}  // namespace kolo
