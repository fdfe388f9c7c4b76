#include "models/compute/cuda/arena.h"

#include <algorithm>

namespace kolo::models::cuda {

std::optional<std::size_t> Arena::take(std::size_t bytes) {
  constexpr std::size_t alignment = 256;
  const std::size_t size = std::max<std::size_t>((bytes + alignment - 1) / alignment, 1) * alignment;
  std::size_t begin = 0;
  for (const auto& [offset, end] : pieces_) {
    if (offset - begin >= size) break;
    begin = end;
  }
  if (capacity_ < size || begin > capacity_ - size) return {};
  pieces_.emplace(begin, begin + size);
  most_ = std::max(most_, begin + size);
  return begin;
}

}  // namespace kolo::models::cuda
