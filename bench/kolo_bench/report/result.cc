#include "bench/kolo_bench/report/result.h"

#include <algorithm>

#include "bench/kolo_bench/measure/collective.h"

namespace kolo::bench {

double Overlap::percent() const {
  return pure_comm_us > 0 ? std::max(0.0, 100 - (overall_us - compute_us) / pure_comm_us * 100) : 0;
}

const PeerResult* Result::peer(std::string_view name) const {
  const auto found = std::ranges::find(compare, name, &PeerResult::name);
  return found == compare.end() ? nullptr : &*found;
}

void fill_in_bandwidth(Result& result, OpKind kind, int ranks) {
  const double us = result.time_us.p50;
  result.algbw_gbs = us > 0 ? static_cast<double>(result.bytes) / us / 1e3 : 0;
  if (const auto factor = bus_factor(kind, ranks)) result.busbw_gbs = result.algbw_gbs * *factor;
}

double average_busbw(const std::vector<Result>& results) {
  double sum = 0;
  int count = 0;
  for (const Result& result : results) {
    if (!result.busbw_gbs) continue;
    sum += *result.busbw_gbs;
    ++count;
  }
  return count > 0 ? sum / count : 0;
}

}  // namespace kolo::bench
