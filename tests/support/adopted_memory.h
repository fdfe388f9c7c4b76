#pragma once

#include <unistd.h>

#include <bit>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include <kolo/backend.h>

namespace kolo {

/// Blocks of whole pages of the program, used again and again, out of a few that are adopted when they are made.
/// Outlives what has adopted them.
class AdoptedMemory final : public MemorySource {
 public:
  /// `adopt`: by a session, or a backend's source.
  explicit AdoptedMemory(std::function<void(void* data, std::size_t bytes)> adopt)
      : blocks_(std::make_shared<Blocks>()), adopt_(std::move(adopt)) {}

  std::shared_ptr<std::byte> allocate(std::size_t bytes, Device) override {
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    const std::size_t size = std::bit_ceil(std::max(bytes, page));
    const std::lock_guard lock(blocks_->mutex);
    auto& unused = blocks_->unused[size];
    if (unused.empty()) {
      if (blocks_->left < size) {
        blocks_->left = std::max(size, at_once);
        Block block(static_cast<std::byte*>(std::aligned_alloc(page, blocks_->left)), &std::free);
        adopt_(block.get(), blocks_->left);
        blocks_->next = block.get();
        blocks_->all.push_back(std::move(block));
      }
      unused.push_back(blocks_->next);
      blocks_->next += size;
      blocks_->left -= size;
    }
    std::byte* const data = unused.back();
    unused.pop_back();
    std::memset(data, 0, size);
    return {data, [blocks = blocks_, size](std::byte* block) {
              const std::lock_guard guard(blocks->mutex);
              blocks->unused[size].push_back(block);
            }};
  }

 private:
  static constexpr std::size_t at_once = 4 << 20;
  using Block = std::unique_ptr<std::byte, decltype(&std::free)>;
  struct Blocks {
    std::mutex mutex;
    std::vector<Block> all;
    std::byte* next = nullptr;  // in the last of them
    std::size_t left = 0;
    std::map<std::size_t, std::vector<std::byte*>> unused;  // by size
  };
  const std::shared_ptr<Blocks> blocks_;
  const std::function<void(void*, std::size_t)> adopt_;
};

}  // namespace kolo
