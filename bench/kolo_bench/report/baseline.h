#pragma once

#include <string>
#include <vector>

#include "bench/kolo_bench/report/result.h"

namespace kolo::bench {

/// The results of an earlier run.
class Baseline {
 public:
  /// Reads what --format json or -J wrote. Errors: UsageError.
  explicit Baseline(const std::string& path);

  /// Makes sure that it can be compared with a run of that many ranks, along that path and with that memory (see
  /// WorldInfo). Errors: UsageError.
  void check_world(int ranks, const std::string& path, const std::string& memory) const;

  /// One line for each result whose median is longer than the baseline's by more than `tolerance`, a share of it.
  /// Errors: UsageError if the baseline has none of the results.
  std::vector<std::string> slower(const std::vector<Result>& results, double tolerance) const;

  /// The number of results that are not in it.
  std::size_t lacks(const std::vector<Result>& results) const;

 private:
  struct Entry {
    std::string key;
    double p50_us = 0;
  };
  std::string path_;
  int ranks_ = 0;
  std::string way_, memory_;
  std::vector<Entry> entries_;
};

/// One line for each placement in which no size reaches that bus bandwidth.
std::vector<std::string> below_busbw(const std::vector<Result>& results, double min_gbs);

}  // namespace kolo::bench
