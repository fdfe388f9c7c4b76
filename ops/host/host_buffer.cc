#include "ops/host/host_buffer.h"

#include <fmt/format.h>

#include <cstdlib>
#include <limits>

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

}  // namespace kolo
