#include "apps/train/evaluator.h"

#include <algorithm>
#include <chrono>
#include <limits>

#include "apps/cli/agreement.h"
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
  if (!job_->eval_batches()) job_->settle_eval_batches(affordable(training_seconds));
  const std::int64_t most = *job_->eval_batches();
  return evaluate(most == 0 ? every_batch : most);
}

models::EvaluationShare Evaluator::share(std::int64_t most) const {
  const Options& options = job_->options();
  return {.range = models::even_share(job_->corpus().held_out->count(), session_->size(), session_->rank()),
          .batch = options.takes_tokens() ? options.batch : 256,
          .most = most};
}

std::optional<EvalEvent> Evaluator::evaluate(std::int64_t most) {
  const models::Examples& held_out = *job_->corpus().held_out;
  if (held_out.count() == 0) return std::nullopt;
  const auto start = Clock::now();
  const models::EvaluationShare mine = share(most);
  models::BatchResult sums;
  std::int64_t bytes = 0;
  cli::collectively(*session_, [&] {
    const std::int64_t all = mine.examples();
    std::int64_t done = 0;
    sums = models::evaluate(job_->model(), held_out, mine, [&](const models::Batch& batch) {
      for (Listener* listener : listeners_) listener->on_part({"measuring", done, all});
      done += batch.examples;
      for (const std::int32_t target : batch.targets)
        bytes += job_->corpus().bytes_of_targets[static_cast<std::size_t>(std::int64_t{target} + 1)];
    });
  });
  Handle loss = session_->all_reduce_async("held-out loss", view_scalar(sums.loss_sum));
  Handle correct = session_->all_reduce_async("held-out correct", view_scalar(sums.correct));
  Handle targets = session_->all_reduce_async("held-out targets", view_scalar(sums.targets));
  Handle text = session_->all_reduce_async("held-out bytes", view_scalar(bytes));
  for (Handle* handle : {&loss, &correct, &targets, &text}) handle->wait();
  const auto count = static_cast<double>(sums.targets);
  return EvalEvent{.loss = sums.loss_sum / count,
                   .accuracy = static_cast<double>(sums.correct) / count,
                   .of_tokens = job_->options().takes_tokens(),
                   .bytes_per_target = static_cast<double>(bytes) / count,
                   .batches = mine.batches(),
                   .all_batches = mine.all_batches(),
                   .seconds = seconds_since(start)};
}

/// Batches of a rank that take no longer than `seconds`, the same number on all ranks; 0: all do. A batch takes what
/// the second of three does, behind one that reserves memory: one of them may be held up by other programs.
std::int64_t Evaluator::affordable(double seconds) {
  const models::Examples& held_out = *job_->corpus().held_out;
  double each = 0;
  cli::collectively(*session_, [&] {
    std::vector<Clock::time_point> begun;
    (void)models::evaluate(job_->model(), held_out, share(4),
                           [&](const models::Batch&) { begun.push_back(Clock::now()); });
    begun.push_back(Clock::now());
    std::vector<double> took;
    for (std::size_t i = 1; i + 1 < begun.size(); ++i)
      took.push_back(std::chrono::duration<double>(begun[i + 1] - begun[i]).count());
    std::ranges::sort(took);
    each = took.empty() ? 0 : took[took.size() / 2];
  });
  session_->all_reduce("seconds of a batch", view_scalar(each), {.op = ReduceOp::max});
  session_->all_reduce("seconds of training", view_scalar(seconds), {.op = ReduceOp::min});
  const models::Range largest = models::even_share(held_out.count(), session_->size(), 0);
  const models::EvaluationShare whole{.range = largest, .batch = share(1).batch};
  const double fits = std::max(1.0, seconds / each);
  return fits >= static_cast<double>(whole.all_batches()) ? 0 : static_cast<std::int64_t>(fits);
}

}  // namespace kolo::train
