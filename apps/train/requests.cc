#include "apps/train/requests.h"

#include <algorithm>
#include <atomic>
#include <csignal>

namespace kolo::train {
namespace {

// A signal is of the whole process.
std::atomic<bool> terminated{false}, store_wanted{false};
static_assert(std::atomic<bool>::is_always_lock_free);

void note(int signal) {
  (signal == SIGTERM ? terminated : store_wanted) = true;
}

}  // namespace

Requests::Requests(bool signals, std::optional<double> max_minutes) : signals_(signals) {
  using Clock = std::chrono::steady_clock;
  if (max_minutes) {
    constexpr double most = 60. * 24 * 365 * 100;  // the clock's numbers end after 292 years
    const std::chrono::duration<double, std::ratio<60>> minutes(std::min(*max_minutes, most));
    end_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(minutes);
  }
  if (!signals_) return;
  terminated = store_wanted = false;
  for (const int signal : {SIGTERM, SIGUSR1}) std::signal(signal, note);
}

Requests::~Requests() {
  if (!signals_) return;
  for (const int signal : {SIGTERM, SIGUSR1}) std::signal(signal, SIG_DFL);
}

bool Requests::stops() const {
  return (signals_ && terminated) || (end_ && std::chrono::steady_clock::now() >= *end_);
}

bool Requests::take_store() {
  return signals_ && store_wanted.exchange(false);
}

}  // namespace kolo::train
