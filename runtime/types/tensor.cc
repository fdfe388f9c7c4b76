#include <kolo/tensor.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>

namespace kolo {

Shape::Shape(std::span<const std::int64_t> extents) : dims_(static_cast<int>(extents.size())) {
  std::copy_n(extents.begin(), std::min<std::size_t>(extents.size(), max_dims), extents_.begin());
}

bool Shape::valid() const {
  if (dims_ > max_dims) return false;
  // Bytes must fit too, whatever the element type.
  constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max() / 8;
  std::int64_t product = 1;
  bool fits = true;
  bool empty = false;
  for (const std::int64_t extent : extents()) {
    if (extent < 0) return false;
    if (extent == 0) {
      empty = true;
    } else if (product > most / extent) {
      fits = false;
    } else {
      product *= extent;
    }
  }
  return fits || empty;
}

std::int64_t Shape::product() const {
  if (std::ranges::find(extents(), 0) != extents().end()) return 0;  // [2^40, 2^40, 0] must not overflow on its way
  std::int64_t elements = 1;
  for (const std::int64_t extent : extents()) elements *= extent;
  return elements;
}

std::string to_string(const Shape& shape) {
  const char* more = shape.dims() > Shape::max_dims ? ",…" : "";
  return fmt::format("[{}{}]", fmt::join(shape.extents(), ","), more);
}

}  // namespace kolo
