#include "apps/train/evaluator.h"

#include <algorithm>
#include <chrono>
#include <limits>

#include "apps/train/reports/time_left.h"

namespace kolo::train {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t every_batch = std::numeric_limits<std::int64_t>::max();

}  // namespace

std::optional<EvalEvent> Evaluator::evaluate_all() {
  return evaluate(every_batch);
}

std::optional<EvalEvent> Evaluator::evaluate_some(double training_seconds) {
  std::optional<std::int64_t> most = job_->eval_batches();
  if (!most) {
    most = affordable(training_seconds);
    if (!most) return std::nullopt;
    job_->settle_eval_batches(*most);
  }
  return evaluate(*most == 0 ? every_batch : *most);
}

void Evaluator::report(std::int64_t steps_done, std::optional<EvalEvent> event) {
  if (!event) return;
  event->step = std::max<std::int64_t>(steps_done - 1, 0);
  for (Listener* listener : listeners_) listener->on_eval(*event);
}

models::EvaluationShare Evaluator::share(std::int64_t most) const {
  const Options& options = job_->options();
  return {.range = models::even_share(job_->corpus().held_out->count(), session_->size(), session_->rank()),
          .batch = options.takes_tokens() ? options.batch : 256,
          .most = most};
}

/// Of the rank that has most.
std::int64_t Evaluator::most_batches() const {
  const models::Range largest = models::even_share(job_->corpus().held_out->count(), session_->size(), 0);
  return models::EvaluationShare{.range = largest, .batch = share(1).batch}.all_batches();
}

std::optional<EvalEvent> Evaluator::evaluate(std::int64_t most) {
  const models::Examples& held_out = *job_->corpus().held_out;
  stopped_ = false;
  if (held_out.count() == 0) return std::nullopt;
  const auto start = Clock::now();
  const models::EvaluationShare mine = share(most);
  models::BatchResult sums;
  std::int64_t bytes = 0;
  stopped_ = !midway_.run(std::min(most, most_batches()), [&](const Midway::GoesOn& goes_on) {
    const std::int64_t all = mine.examples();
    std::int64_t done = 0;
    sums = models::evaluate(job_->model(), held_out, mine, [&](const models::Batch& batch) {
      if (!goes_on()) return false;
      for (Listener* listener : listeners_) listener->on_part({"measuring", done, all});
      done += batch.examples;
      for (const std::int32_t target : batch.targets)
        bytes += job_->corpus().bytes_of_targets[static_cast<std::size_t>(std::int64_t{target} + 1)];
      return true;
    });
  });
  if (stopped_) return std::nullopt;
  Handle loss = session_->all_reduce_async("held-out loss", view_scalar(sums.loss_sum));
  Handle correct = session_->all_reduce_async("held-out correct", view_scalar(sums.correct));
  Handle targets = session_->all_reduce_async("held-out targets", view_scalar(sums.targets));
  Handle text = session_->all_reduce_async("held-out bytes", view_scalar(bytes));
  for (Handle* handle : {&loss, &correct, &targets, &text}) handle->wait();
  const auto count = static_cast<double>(sums.targets);
  return EvalEvent{
      .loss = sums.loss_sum / count,
      .accuracy = static_cast<double>(sums.correct) / count,
      .of_tokens = job_->options().takes_tokens(),
      .bytes_per_target = static_cast<double>(bytes) / count,
      .of = most < most_batches() ? models::EvaluatedOn{most, session_->size(), mine.batch} : models::EvaluatedOn{},
      .batches = mine.batches(),
      .all_batches = mine.all_batches(),
      .seconds = seconds_since(start)};
}

/// Batches of a rank that take no longer than `seconds` together with those that are timed here, the same number on all
/// ranks; 0: all do. Nothing if a rank was asked to stop meanwhile.
std::optional<std::int64_t> Evaluator::affordable(double seconds) {
  constexpr std::int64_t timed = 4;
  const auto start = Clock::now();
  double each = 0;
  session_->all_reduce("seconds of training", view_scalar(seconds), {.op = ReduceOp::min});
  stopped_ = !midway_.run(std::min(timed, most_batches()), [&](const Midway::GoesOn& goes_on) {
    each = seconds_of_batch(time_batches(job_->model(), *job_->corpus().held_out, share(timed), seconds, goes_on));
  });
  if (stopped_) return std::nullopt;
  double left = seconds - seconds_since(start);
  session_->all_reduce("seconds of a batch", view_scalar(each), {.op = ReduceOp::max});
  session_->all_reduce("seconds of an evaluation", view_scalar(left), {.op = ReduceOp::min});
  const double fits = std::max(1.0, left / each);
  return fits >= static_cast<double>(most_batches()) ? 0 : static_cast<std::int64_t>(fits);
}

std::vector<double> time_batches(models::Model& model, const models::Examples& examples,
                                 const models::EvaluationShare& share, double seconds, const Midway::GoesOn& goes_on) {
  const auto start = Clock::now();
  std::vector<double> times;  // when each batch began, and the last one ended
  const auto begins = [&] {
    times.push_back(seconds_since(start));
    return times.size() == 1 || times.back() < seconds / 2;
  };
  bool within = true;
  (void)models::evaluate(model, examples, share, [&](const models::Batch&) { return within = goes_on() && begins(); });
  if (within) times.push_back(seconds_since(start));
  for (std::size_t i = 0; i + 1 < times.size(); ++i) times[i] = times[i + 1] - times[i];
  if (!times.empty()) times.pop_back();
  return times;
}

double seconds_of_batch(std::span<const double> took) {
  if (took.size() < 2) return took.empty() ? 0 : took.front();
  std::vector<double> later(took.begin() + 1, took.end());
  std::ranges::sort(later);
  return later[later.size() / 2];
}

}  // namespace kolo::train
