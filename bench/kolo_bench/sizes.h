#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kolo::bench {

/// The sizes of a sweep: from `min` up to `max`, each `step` larger than the last, or `factor` times as large if step
/// is 0.
struct Sizes {
  std::int64_t min = 32 << 20;
  std::int64_t max = 32 << 20;
  std::int64_t step = 0;
  std::int64_t factor = 2;

  std::vector<std::int64_t> all() const;

  /// What is wrong with them, with a way out; empty if nothing is.
  std::string problem() const;
};

}  // namespace kolo::bench
