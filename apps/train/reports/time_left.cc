#include "apps/train/reports/time_left.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace kolo::train {
namespace {

constexpr std::int64_t first_steps = 2;

}  // namespace

void StepTime::add(double seconds) {
  constexpr std::int64_t remembered = 20;
  ++steps_;
  const std::int64_t weight = std::clamp<std::int64_t>(steps_ - first_steps, 1, remembered);
  mean_ += (seconds - mean_) / static_cast<double>(weight);
}

void TimeLeft::add(const StepEvent& event) {
  done_ = event.step + 1;
  ++timed_;
  step_.add(event.seconds);
}

std::optional<double> TimeLeft::seconds() const {
  if (timed_ <= first_steps) return std::nullopt;
  return static_cast<double>(last_step_ - done_) * step_.seconds() + evaluation_seconds();
}

/// Of those that are still to come; the last one is of all batches.
double TimeLeft::evaluation_seconds() const {
  if (!evaluation_ || evaluation_->batches == 0) return 0;
  const double each = evaluation_->seconds / static_cast<double>(evaluation_->batches);
  const auto before_last = std::max<std::int64_t>((last_step_ - 1) / eval_every_ - done_ / eval_every_, 0);
  const double batches = static_cast<double>(before_last * evaluation_->batches + evaluation_->all_batches);
  return last_step_ > done_ ? each * batches : 0;
}

std::string duration_text(double seconds) {
  const auto all = static_cast<std::int64_t>(std::lround(seconds));
  const std::int64_t minutes = all / 60, hours = minutes / 60;
  if (hours >= 24) return fmt::format("{}d {:02}:{:02}", hours / 24, hours % 24, minutes % 60);
  if (hours > 0) return fmt::format("{}:{:02}:{:02}", hours, minutes % 60, all % 60);
  return fmt::format("{}:{:02}", minutes, all % 60);
}

}  // namespace kolo::train
