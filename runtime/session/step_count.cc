#include "runtime/session/step_count.h"

#include <fmt/format.h>

#include <cmath>
#include <utility>

#include <kolo/error.h>

namespace kolo {
namespace {

[[noreturn]] void bad_count(const std::string& problem) {
  throw Error(ErrorCode::invalid_argument, problem);
}

}  // namespace

StepCount::StepCount(Session& session, Options options)
    : session_(&session),
      options_(std::move(options)),
      sum_name_(session.declare(options_.prefix + "count")),
      range_name_(session.declare(options_.prefix + "expected count")),
      expected_(options_.ranks) {
  if (!options_.counts) total_ = options_.ranks;
}

void StepCount::set(double mine, double expected) {
  if (!options_.counts) bad_count("a step counts without DataParallelOptions::counts; set it on every rank");
  if (sent_) bad_count("count() was called behind the step's first ready(); call it before");
  if (!(mine >= 0 && expected >= 0 && std::isfinite(mine) && std::isfinite(expected)))
    bad_count(fmt::format("a step cannot count {} of {} (numbers from 0 on); say what this rank's share counts", mine,
                          expected));
  mine_ = mine;
  expected_ = expected > 0 ? expected : options_.ranks;
  set_ = true;
}

void StepCount::send() {
  if (!options_.counts || sent_) return;
  if (!set_) bad_count("the step's count is missing (DataParallelOptions::counts); call count() before ready()");
  sent_ = true;
  total_.reset();
  sum_ = {mine_};
  range_ = {expected_, -expected_};
  // A priority of its own: it shares no bucket with what is ready at the end of the pass.
  const auto start = [&](TensorId name, std::span<double> numbers, ReduceOp op) {
    return session_->all_reduce_async(
        name, view(numbers), view(numbers),
        {.op = op, .group = options_.group, .timeout_seconds = options_.timeout_seconds, .priority = 1});
  };
  sum_handle_ = start(sum_name_, sum_, ReduceOp::sum);
  if (options_.divides) range_handle_ = start(range_name_, range_, ReduceOp::max);
}

double StepCount::total() {
  if (total_) return *total_;
  if (!sum_handle_) bad_count("counted() before the step's first ready(); call that first");
  sum_handle_.wait();
  check_expected();
  return *(total_ = sum_[0]);
}

void StepCount::check_expected() {
  range_handle_.wait();  // empty where nothing is divided: then the range is this rank's
  if (range_[0] == -range_[1]) return;
  bad_count(fmt::format(
      "ranks expected different counts in this step (from {} to {}), and gradients in 16 bits are divided by "
      "it; pass the same to count() on every rank",
      -range_[1], range_[0]));
}

}  // namespace kolo
