#include "bench/kolo_bench/sizes.h"

#include <fmt/format.h>

namespace kolo::bench {

std::vector<std::int64_t> Sizes::all() const {
  std::vector<std::int64_t> sizes;
  for (std::int64_t size = min; size <= max;) {
    sizes.push_back(size);
    const bool overflows =
        step > 0 ? __builtin_add_overflow(size, step, &size) : __builtin_mul_overflow(size, factor, &size);
    if (overflows) break;
  }
  return sizes;
}

std::string Sizes::problem() const {
  constexpr std::int64_t most = 100'000;
  if (min > max)
    return fmt::format("-b is {} and -e is {}: the largest size is below the smallest; swap them", min, max);
  const std::int64_t count = step > 0 ? (max - min) / step + 1 : 1;
  if (count > most) {
    return fmt::format(
        "-b {} -e {} -i {} are {} sizes, and {} are enough for anybody; use a larger step, or a factor: -f 2", min, max,
        step, count, most);
  }
  return {};
}

}  // namespace kolo::bench
