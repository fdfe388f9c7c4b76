#pragma once

#include <cstdint>
#include <cstdlib>
#include <vector>

namespace kolo::testing {

/// Seeds of a random test: 1…count, or only KOLO_TEST_SEED if that is set, to replay a failure. KOLO_TEST_SCALE
/// multiplies the count, for longer runs.
inline std::vector<std::uint64_t> seeds(std::uint64_t count) {
  if (const char* one = std::getenv("KOLO_TEST_SEED")) return {std::strtoull(one, nullptr, 10)};
  if (const char* scale = std::getenv("KOLO_TEST_SCALE"))
    count = static_cast<std::uint64_t>(std::strtod(scale, nullptr) * static_cast<double>(count));
  std::vector<std::uint64_t> result;
  for (std::uint64_t seed = 1; seed <= count; ++seed) result.push_back(seed);
  return result;
}

}  // namespace kolo::testing
