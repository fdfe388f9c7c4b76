#include "models/compute/buffer.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cstdlib>
#include <utility>

#include "models/util/headroom.h"

namespace kolo::models {

Buffer::~Buffer() {
  std::free(data_);
}

Buffer::Buffer(Buffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

void Buffer::need(std::size_t bytes, std::string_view what) {
  if (bytes <= bytes_) return;
  std::free(std::exchange(data_, nullptr));
  bytes_ = 0;
  constexpr std::size_t cache_line = 64, large_page = std::size_t{2} << 20;
  const std::size_t alignment = bytes >= large_page ? large_page : cache_line;
  if (::posix_memalign(&data_, alignment, bytes) != 0) {
    data_ = nullptr;
    refuse_memory(fmt::format("{} ({:.1f} MiB)", what, static_cast<double>(bytes) / (1 << 20)));
  }
  if (alignment == large_page) ::madvise(data_, bytes, MADV_HUGEPAGE);  // a hint: without them it is slower
  bytes_ = bytes;
}

float* Buffer::floats(std::int64_t count, std::string_view what) {
  need(static_cast<std::size_t>(count) * sizeof(float), what);
  return floats();
}

MatmulItem* Buffer::items(Precision precision, std::int64_t count, std::string_view what) {
  need(static_cast<std::size_t>(count) * item_bytes(precision), what);
  return items();
}

}  // namespace kolo::models
