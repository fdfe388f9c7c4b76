#include "ops/shm_stores.h"

#include <algorithm>

namespace kolo {
namespace {

constexpr std::size_t large = 32 << 10;     // below, the clock costs too much, and chunks stay in the cache anyway
constexpr std::uint64_t trial_period = 128;  // chunks
constexpr double clearly = 1.5;
constexpr double forgetting = 1.1;  // of a good time with each worse one: interruptions do not count, changes soon do

}  // namespace

CopyTo ShmStores::choose(std::size_t bytes) {
  timed_ = bytes >= large;
  if (!timed_) return current_ = CopyTo::cache;
  const bool past_cache = cost(CopyTo::memory) > 0 && cost(CopyTo::memory) * clearly < cost(CopyTo::cache);
  const bool trial = ++large_chunks_ % trial_period == 2;
  return current_ = past_cache != trial ? CopyTo::memory : CopyTo::cache;
}

void ShmStores::learn(std::size_t bytes, double seconds) {
  if (bytes < large) return;
  const double now = seconds / static_cast<double>(bytes);
  double& known = cost(current_);
  known = known > 0 ? std::min(now, known * forgetting) : now;
}

}  // namespace kolo
