#include "apps/train/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "apps/train/agreement.h"

namespace kolo::train {

Trainer::Trainer(Session& session, const Options& options, Job& job, std::vector<Listener*> listeners)
    : session_(&session),
      options_(options),
      job_(&job),
      listeners_(std::move(listeners)),
      parallel_(session, job.model()),
      loader_(job.data().train) {}

bool Trainer::run() {
  parallel_.broadcast_parameters();
  for (std::int64_t next = 0; next < job_->last_step(); ++next) {
    if (!step(next)) return false;
  }
  if (evaluated_at_ != job_->last_step()) evaluate(job_->last_step());
  return true;
}

/// Returns whether to go on.
bool Trainer::step(std::int64_t step) {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  const models::StepShare share = job_->sampler().at(step);
  const auto examples = static_cast<double>(share.global_examples);
  models::Optimizer& optimizer = job_->optimizer();
  optimizer.begin_step(options_.lr, 1 / examples);
  const StepResult result = parallel_.step(loader_.gather(share.examples), listener_gives_up(),
                                           [&](std::size_t index) { optimizer.update(index); });
  if (result.give_up) return false;

  const StepEvent event{.step = step,
                        .epoch = share.epoch,
                        .examples = share.global_examples,
                        .loss = result.loss_sum / examples,
                        .lr = options_.lr,
                        .seconds = std::chrono::duration<double>(Clock::now() - start).count(),
                        .wait_seconds = result.wait_seconds};
  if (!std::isfinite(event.loss)) stop_diverged(step);
  for (Listener* listener : listeners_) listener->on_step(event);
  if (evaluation_due(step + 1, share.last_of_epoch)) evaluate(step + 1);
  return true;
}

/// Every rank sees the same loss, so every rank comes here.
void Trainer::stop_diverged(std::int64_t step) {
  together(*session_, [&] {
    throw UsageError(fmt::format(
        "the loss is no number any more at step {} (the training diverged); try an --lr below {}", step, options_.lr));
  });
}

void Trainer::evaluate(std::int64_t steps_done) {
  const models::Dataset& held_out = job_->data().held_out;
  evaluated_at_ = steps_done;
  if (held_out.count() == 0) return;
  const auto mine = models::even_share(held_out.count(), session_->size(), session_->rank());
  models::BatchResult sums = models::evaluate(job_->model(), models::Images(held_out), mine, 256);
  Handle loss = session_->all_reduce_async("held-out loss", view_scalar(sums.loss_sum));
  Handle correct = session_->all_reduce_async("held-out correct", view_scalar(sums.correct));
  loss.wait();
  correct.wait();
  const auto examples = static_cast<double>(held_out.count());
  const EvalEvent event{
      .step = steps_done, .loss = sums.loss_sum / examples, .accuracy = static_cast<double>(sums.correct) / examples};
  for (Listener* listener : listeners_) listener->on_eval(event);
}

bool Trainer::evaluation_due(std::int64_t steps_done, bool end_of_epoch) const {
  return options_.eval_every ? steps_done % *options_.eval_every == 0 : end_of_epoch;
}

bool Trainer::listener_gives_up() const {
  return std::ranges::any_of(listeners_, [](const Listener* listener) { return listener->gives_up(); });
}

}  // namespace kolo::train
