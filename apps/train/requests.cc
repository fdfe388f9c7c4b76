#include "apps/train/requests.h"

#include <algorithm>
#include <atomic>
#include <csignal>

namespace kolo::train {
namespace {

// A signal is of the whole process.
std::atomic<bool> was_terminated{false}, store_wanted{false};
static_assert(std::atomic<bool>::is_always_lock_free);

void note(int signal) {
  (signal == SIGTERM ? was_terminated : store_wanted) = true;
}

}  // namespace

void take_signals_as_requests() {
  for (const int signal : {SIGUSR1, SIGTERM}) std::signal(signal, note);
}

Requests::Requests(Clock::time_point start, std::optional<double> max_minutes) {
  if (!max_minutes) return;
  constexpr double most = 60. * 24 * 365 * 100;  // the clock's numbers end after 292 years
  const std::chrono::duration<double, std::ratio<60>> minutes(std::min(*max_minutes, most));
  end_ = start + std::chrono::duration_cast<Clock::duration>(minutes);
}

bool Requests::stops() const {
  return was_terminated || (end_ && Clock::now() >= *end_);
}

bool Requests::take_store() {
  return store_wanted.exchange(false);
}

}  // namespace kolo::train
