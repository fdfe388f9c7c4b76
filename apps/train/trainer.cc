#include "apps/train/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>

#include "apps/cli/agreement.h"

namespace kolo::train {
namespace {

using Clock = std::chrono::steady_clock;

std::optional<double> clip_of(const Options& options) {
  return options.clip > 0 ? std::optional(options.clip) : std::nullopt;
}

/// ZeRO-1 among the ranks of one node: through shared memory reduce_scatter and all_gather cost no more than an
/// all_reduce. Not worth it for small parameters.
std::size_t shards_from(const Session& session) {
  constexpr std::size_t worth_it = 16 << 10;
  return session.local_size() == session.size() ? worth_it : std::numeric_limits<std::size_t>::max();
}

/// Makes the micro-batches of all steps, one after the other; micro-batch n is n mod accumulate of its step.
models::Prefetcher::Make maker(const Job& job) {
  return [sampler = job.sampler(), examples = job.corpus().train.get(), accumulate = job.options().accumulate](
             std::int64_t number, models::BatchStorage& to) mutable {
    const models::StepShare share = sampler.at(number / accumulate, number % accumulate);
    examples->gather(share.examples, share.epoch, to);
  };
}

}  // namespace

Trainer::Trainer(Session& session, Job& job, std::int64_t first, std::vector<Listener*> listeners, Store store)
    : session_(&session),
      job_(&job),
      first_(first),
      listeners_(std::move(listeners)),
      store_(std::move(store)),
      parallel_(session, job.model(),
                {.shards_from = shards_from(session),
                 .wire = job.options().wire,
                 .reduces_in_passes = job.reduces_in_passes()}),
      update_(job.optimizer(), job.model().parameters(), clip_of(job.options()), job.loss_scale(), parallel_.shards()) {
}

bool Trainer::run() {
  const std::int64_t accumulate = job_->options().accumulate;
  cli::collectively(*session_,
                    [&] { batches_.emplace(maker(*job_), first_ * accumulate, job_->last_step() * accumulate); });
  for (std::int64_t next = first_; next < job_->last_step(); ++next) {
    if (!step(next)) return false;
  }
  if (evaluated_at_ != job_->last_step()) evaluate(job_->last_step());
  return true;
}

/// Returns whether to go on.
bool Trainer::step(std::int64_t step) {
  const auto start = Clock::now();
  const auto targets = static_cast<double>(job_->sampler().place(step).global_examples * job_->targets_each());
  const float loss_scale = job_->loss_scale() == nullptr ? 1 : job_->loss_scale()->value();
  update_.begin(job_->schedule().at(step), parallel_.gradient_scale(targets));
  const StepResult result = parallel_.step({.next = [this] { return next_batch(); },
                                            .micro_batches = job_->options().accumulate,
                                            .loss_scale = loss_scale,
                                            .targets = targets},
                                           listener_gives_up(), [this](std::size_t index) { update_.arrived(index); });
  if (result.give_up) {
    stop_with(result);
    return false;
  }
  const models::UpdateResult updated = update_.finish([this](double squares) { return parallel_.sum(squares); });
  parallel_.share_values();
  const StepEvent event = event_of(step, result, updated, std::chrono::duration<double>(Clock::now() - start).count());
  check_diverged(event);
  for (Listener* listener : listeners_) listener->on_step(event);
  if (evaluation_due(step + 1)) evaluate(step + 1);
  if (checkpoint_due(step + 1)) store(step + 1);
  return true;
}

StepEvent Trainer::event_of(std::int64_t step, const StepResult& result, const models::UpdateResult& updated,
                            double seconds) const {
  const models::StepPlace place = job_->sampler().place(step);
  const std::int64_t targets = place.global_examples * job_->targets_each();
  return {.step = step,
          .epoch = place.epoch,
          .examples = place.global_examples,
          .tokens = job_->options().is_llama() ? targets : 0,
          .loss = result.loss_sum / static_cast<double>(targets),
          .lr = job_->schedule().at(step),
          .grad_norm = updated.gradient_norm,
          .seconds = seconds,
          .wait_seconds = parallel_.wait_seconds()};
}

models::Batch Trainer::next_batch() {
  check_reserve();
  return batches_->next();
}

/// A rank that failed says why; a listener that gave up reports later.
void Trainer::stop_with(const StepResult& result) {
  cli::collectively(*session_, [&] {
    if (result.problem) std::rethrow_exception(result.problem);
  });
}

/// Every rank sees the same loss, so every rank comes to the same end.
void Trainer::check_diverged(const StepEvent& event) {
  if (std::isfinite(event.loss)) return;
  cli::collectively(*session_, [&] {
    throw UsageError(fmt::format("the loss is not finite at step {} (the training diverged); try an --lr below {}",
                                 event.step, job_->options().lr));
  });
}

void Trainer::evaluate(std::int64_t steps_done) {
  const models::Examples& held_out = *job_->corpus().held_out;
  evaluated_at_ = steps_done;
  if (held_out.count() == 0) return;
  models::BatchResult sums;
  cli::collectively(*session_, [&] {
    const auto mine = models::even_share(held_out.count(), session_->size(), session_->rank());
    const std::int64_t batch = job_->options().is_llama() ? job_->options().batch : 256;
    sums = models::evaluate(job_->model(), held_out, mine, batch, [&](std::int64_t done) {
      for (Listener* listener : listeners_) listener->on_part({"measuring", done, mine.count});
    });
  });
  Handle loss = session_->all_reduce_async("held-out loss", view_scalar(sums.loss_sum));
  Handle correct = session_->all_reduce_async("held-out correct", view_scalar(sums.correct));
  Handle targets = session_->all_reduce_async("held-out targets", view_scalar(sums.targets));
  for (Handle* handle : {&loss, &correct, &targets}) handle->wait();
  const auto count = static_cast<double>(sums.targets);
  const EvalEvent event{.step = std::max<std::int64_t>(steps_done - 1, 0),
                        .loss = sums.loss_sum / count,
                        .accuracy = static_cast<double>(sums.correct) / count};
  for (Listener* listener : listeners_) listener->on_eval(event);
}

bool Trainer::evaluation_due(std::int64_t steps_done) const {
  const auto& every = job_->options().eval_every;
  return every ? steps_done % *every == 0 : job_->sampler().place(steps_done - 1).last_of_epoch;
}

bool Trainer::checkpoint_due(std::int64_t steps_done) const {
  const Options& options = job_->options();
  if (options.checkpoint.empty()) return false;
  return steps_done == job_->last_step() || (options.every && steps_done % *options.every == 0);
}

/// Rank 0 gathers the optimizer's state and stores everything.
void Trainer::store(std::int64_t steps_done) {
  const auto start = Clock::now();
  parallel_.collect_state(job_->optimizer());
  if (store_) store_(steps_done, Clock::now() - start);
}

bool Trainer::listener_gives_up() const {
  return std::ranges::any_of(listeners_, [](const Listener* listener) { return listener->gives_up(); });
}

}  // namespace kolo::train
