#include "ops/shm_stores.h"

#include <algorithm>

namespace kolo {
namespace {

constexpr std::uint64_t trial_period = 128;  // chunks
constexpr double clearly = 1.5;
constexpr double forgetting = 1.1;  // of a good time with each worse one: interruptions do not count, changes soon do

}  // namespace

CopyTo ShmStores::choose(std::size_t bytes) {
  if (bytes < large) return CopyTo::cache;
  const bool past_cache = cost(CopyTo::memory) > 0 && cost(CopyTo::memory) * clearly < cost(CopyTo::cache);
  const bool trial = ++large_chunks_ % trial_period == 2;
  return past_cache != trial ? CopyTo::memory : CopyTo::cache;
}

void ShmStores::learn(std::size_t bytes, CopyTo way, double seconds) {
  if (bytes < large) return;
  const double now = seconds / static_cast<double>(bytes);
  double& known = cost(way);
  known = known > 0 ? std::min(now, known * forgetting) : now;
}

}  // namespace kolo
