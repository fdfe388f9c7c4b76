#include "bench/kolo_bench/report/result.h"

#include <algorithm>
#include <utility>

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

void add_best_peer(Result& result, const std::string& name) {
  const auto order = [](const PeerResult& peer) { return std::pair(peer.wrong.value_or(0) > 0, peer.time_us.p50); };
  PeerResult best = *std::ranges::min_element(result.compare, {}, order);
  best.name = name;
  result.compare.insert(result.compare.begin() + 1, std::move(best));
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
