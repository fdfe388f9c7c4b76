#include "ops/shm/store_policy.h"

#include <algorithm>
#include <utility>

namespace kolo {
namespace {

constexpr int shortest_period = 8, longest_period = 256;        // chunks between trials
constexpr int trial_length = 2;                                 // chunks
constexpr double weight_in_use = 0.125, weight_in_trial = 0.5;  // of a sample against what is known
constexpr double outlier = 3;  // times what is known: a sample counts for no more, since it may have been interrupted

}  // namespace

CopyTo StorePolicy::choose(std::size_t bytes) {
  if (bytes < tuning_.least) return CopyTo::cache;
  const double cached = cost(CopyTo::cache), streamed = cost(CopyTo::memory);
  const CopyTo better = streamed > 0 && streamed * tuning_.clearly < cached ? CopyTo::memory : CopyTo::cache;
  if (std::exchange(in_use_, better) != better) {  // perhaps for a while only
    period_ = shortest_period;
    since_trial_ = 0;
  }
  if (++since_trial_ <= period_) return better;
  if (since_trial_ == period_ + trial_length) {
    period_ = std::min(2 * period_, longest_period);
    since_trial_ = 0;
  }
  return better == CopyTo::cache ? CopyTo::memory : CopyTo::cache;
}

void StorePolicy::learn(std::size_t bytes, std::size_t written, CopyTo way, double seconds) {
  if (bytes < tuning_.least || written == 0) return;
  const double now = seconds / static_cast<double>(written);
  double& known = cost(way);
  const double weight = way == in_use_ ? weight_in_use : weight_in_trial;
  known = known > 0 ? known + weight * (std::min(now, outlier * known) - known) : now;
}

}  // namespace kolo
