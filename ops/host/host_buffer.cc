#include "ops/host/host_buffer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <utility>

#include <kolo/error.h>

namespace kolo {

HostBuffer::HostBuffer(std::size_t bytes) : size_(bytes) {
  constexpr std::size_t alignment = 64;
  const bool fits = bytes <= std::numeric_limits<std::ptrdiff_t>::max();
  void* const data = fits ? std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment) : nullptr;
  if (!data) throw Error(ErrorCode::backend, fmt::format("cannot allocate {} bytes of host memory", bytes));
  memory_.reset(static_cast<std::byte*>(data));
}

void HostBuffer::Traits::destroy(Raw data) noexcept {
  std::free(data);
}

HostBuffer BufferPool::make(std::size_t bytes) {
  HostBuffer buffer(bytes);
  bytes_ += bytes;
  return buffer;
}

HostBuffer BufferPool::take(std::size_t bytes) {
  for (; !free_.empty() && free_.back().size() < bytes; free_.pop_back()) bytes_ -= free_.back().size();
  if (free_.empty()) free_.push_back(make(bytes));
  HostBuffer buffer = std::move(free_.back());
  free_.pop_back();
  ++in_use_;
  return buffer;
}

void BufferPool::give_back(HostBuffer buffer) noexcept {
  --in_use_;
  if (free_.size() < kept_) return free_.push_back(std::move(buffer));
  bytes_ -= buffer.size();
}

void BufferPool::leak(HostBuffer buffer) noexcept {
  --in_use_;
  bytes_ -= buffer.size();
  buffer.leak();
}

void BufferPool::reserve(std::size_t count, std::size_t bytes) {
  while (free_.size() < std::min(count, kept_)) free_.push_back(make(bytes));
}

}  // namespace kolo
