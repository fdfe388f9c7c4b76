#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <vector>

namespace kolo::cli {

/// Percentiles of a list of times by the nearest-rank method, and their mean, in the unit of the list.
struct Percentiles {
  double p50 = 0, p95 = 0, p99 = 0, min = 0, max = 0, mean = 0, p90 = 0;
};

inline Percentiles percentiles(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  const auto at = [&](double share) {
    const auto reached = static_cast<std::size_t>(std::ceil(share * static_cast<double>(values.size())));
    return values[std::max<std::size_t>(reached, 1) - 1];
  };
  const double mean = std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
  return {at(0.5), at(0.95), at(0.99), values.front(), values.back(), mean, at(0.9)};
}

}  // namespace kolo::cli
