#include "apps/train/midway.h"

#include <utility>

#include "apps/cli/agreement.h"

namespace kolo::train {

bool Midway::run(std::int64_t parts, const std::function<void(const GoesOn& goes_on)>& work) {
  said_ = 0;
  stopped_ = false;
  std::exception_ptr problem;
  try {
    work([this] { return goes_on(false); });
  } catch (const Error&) {
    throw;  // the ranks cannot talk any more
  } catch (const std::exception&) {
    problem = std::current_exception();
  }
  while (said_ < parts && goes_on(problem != nullptr)) continue;
  if (!stopped_) (void)hear();
  cli::collectively(*session_, [&] {
    if (problem) std::rethrow_exception(problem);
  });
  return !stopped_;
}

bool Midway::goes_on(bool failed) {
  if (stopped_ || !hear()) {
    stopped_ = true;
    return false;
  }
  const WrittenParts written = checkpoints_->written();
  totals_ = {requests_->stops() ? 1. : 0., failed ? 1. : 0., written.on_disk, written.lost};
  ++said_;
  handle_ = session_->all_reduce_async("midway", view(std::span(totals_)));
  return true;
}

/// What all have said: whether to go on.
bool Midway::hear() {
  handle_.wait();
  const auto [stop, have_failed, on_disk, lost] = std::exchange(totals_, {});
  checkpoints_->settle({on_disk, lost});
  return stop == 0 && have_failed == 0;
}

bool Midway::any_stops() {
  double ranks = requests_->stops() ? 1 : 0;
  session_->all_reduce("who stops", view_scalar(ranks));
  return ranks > 0;
}

}  // namespace kolo::train
