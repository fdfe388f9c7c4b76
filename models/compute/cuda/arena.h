#pragma once

#include <cstddef>
#include <limits>
#include <map>
#include <optional>

namespace kolo::models::cuda {

/// Pieces of one area of memory, by their offsets. Each lies in the first place that is large enough: the same calls in
/// the same order give the same offsets.
class Arena {
 public:
  explicit Arena(std::size_t capacity = std::numeric_limits<std::size_t>::max()) : capacity_(capacity) {}

  std::size_t capacity() const { return capacity_; }
  /// The end of the last piece, at the most so far.
  std::size_t most_bytes() const { return most_; }

  /// The offset of a new piece, a multiple of 256; nothing if there is no room.
  std::optional<std::size_t> take(std::size_t bytes);
  void give_back(std::size_t offset) noexcept { pieces_.erase(offset); }

 private:
  std::size_t capacity_, most_ = 0;
  std::map<std::size_t, std::size_t> pieces_;  // their ends, by their offsets
};

}  // namespace kolo::models::cuda
