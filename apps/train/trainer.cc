#include "apps/train/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <utility>

#include "apps/cli/agreement.h"
#include "models/compute/peak.h"

namespace kolo::train {
namespace {

using Clock = std::chrono::steady_clock;

std::optional<double> clip_of(const Options& options) {
  return options.clip > 0 ? std::optional(options.clip) : std::nullopt;
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

Trainer::Trainer(Session& session, Job& job, const Resumed& from, std::vector<Listener*> listeners,
                 CheckpointWriter& checkpoints, Requests& requests)
    : session_(&session),
      job_(&job),
      from_(from),
      listeners_(std::move(listeners)),
      checkpoints_(&checkpoints),
      requests_(&requests),
      update_(job.optimizer(), job.model().parameters(), clip_of(job.options()), job.loss_scale(),
              job.parallel().shards(), [&parallel = job.parallel()](std::size_t index) { parallel.updated(index); }),
      evaluator_(session, job, listeners_, Midway(session, checkpoints, requests)),
      norms_(session, job, listeners_) {}

Trainer::End Trainer::run() {
  measure_peak();  // before a thread makes batches
  const std::int64_t accumulate = job_->options().accumulate, first = from_.steps_done, last = job_->last_step();
  cli::collectively(*session_, [&] { batches_.emplace(maker(*job_), first * accumulate, last * accumulate); });
  if (from_.lacks_evaluation && first < last) (void)evaluate(first);  // a step is made even if its time is over then
  for (std::int64_t next = first; next < last; ++next) {
    if (const auto end = step(next)) return *end;
  }
  return evaluated_at_ == last || evaluate(last) ? End::finished : stop(last);
}

/// What products the ranks can do, all at the same time: for a model whose FLOPs are known, and runs of some length.
void Trainer::measure_peak() {
  constexpr std::int64_t least_steps = 20;
  constexpr double seconds = 0.1;
  if (job_->flops_each() == 0 || job_->last_step() - from_.steps_done < least_steps) return;
  session_->barrier();
  cli::collectively(*session_, [&] {
    peak_flops_ = models::peak_flops(job_->model().compute(), models::dtype_of(job_->settings().precision), seconds);
  });
  peak_flops_ = sum(peak_flops_);
}

/// Nothing if the training goes on.
std::optional<Trainer::End> Trainer::step(std::int64_t step) {
  ParallelModel& parallel = job_->parallel();
  const auto start = Clock::now();
  const double waited = parallel.wait_seconds();
  data_seconds_ = 0;
  const auto targets = static_cast<double>(job_->sampler().place(step).global_examples * job_->targets_each());
  const float loss_scale = job_->loss_scale() == nullptr ? 1 : job_->loss_scale()->value();
  parallel.begin_step({.next = [this] { return next_batch(); },
                       .micro_batches = job_->options().accumulate,
                       .loss_scale = loss_scale,
                       .targets = targets,
                       .stops = requests_->stops(),
                       .stores = requests_->take_store(),
                       .written = checkpoints_->written()},
                      listener_gives_up());
  update_.begin(job_->schedule().at(step), parallel.gradient_scale());
  const StepResult result = parallel.finish_step([this](std::size_t index) { update_.arrived(index); });
  if (unreported_ && late_loss_) know_loss(result.loss_sum);
  report_last_step();  // all ranks are past it: nobody waits for its norm any more
  checkpoints_->settle(result.written);
  if (result.give_up) {
    stop_with(result);
    return End::given_up;
  }
  const models::UpdateResult updated =
      update_.finish([&](const Tensor& squares, const Tensor& sums) { parallel.sum(squares, sums); });
  unreported_ = event_of(step, result);
  unreported_targets_ = result.targets;
  late_loss_ = result.late;
  late_norm_ = updated.late;
  unreported_->seconds = seconds_since(start);
  unreported_->wait_seconds = parallel.wait_seconds() - waited;
  job_->step_time().add(unreported_->seconds);
  unreported_->loss_scale = job_->loss_scale() == nullptr ? 0 : loss_scale;
  unreported_->skipped = updated.skipped;
  if (!late_norm_) sum_norm(updated.norm);
  norms_.on_step(step, update_);
  if (!late_loss_) check_diverged(*unreported_);
  if (updated.skipped) report_last_step();
  if (checkpoints_->due(step + 1, result.stores)) store(step + 1);
  if (result.stops) return stop(step + 1);
  if (job_->evaluation_due(step + 1) && !evaluate(step + 1)) return stop(step + 1);
  return std::nullopt;
}

/// Behind so many steps, as was asked: they are stored.
Trainer::End Trainer::stop(std::int64_t steps_done) {
  if (checkpoints_->due(steps_done, true)) store(steps_done);
  settle(steps_done);
  if (steps_done < job_->last_step()) return End::stopped;
  return job_->corpus().held_out->count() > 0 ? End::unmeasured : End::finished;
}

/// All but the norm, and what it cost.
StepEvent Trainer::event_of(std::int64_t step, const StepResult& result) const {
  const models::StepPlace place = job_->sampler().place(step);
  return {.step = step,
          .epoch = place.epoch,
          .examples = place.global_examples,
          .tokens = job_->options().takes_tokens() ? place.global_examples * job_->targets_each() : 0,
          .loss = result.loss_sum / result.targets,
          .lr = job_->schedule().at(step),
          .data_seconds = data_seconds_,
          .flops = static_cast<double>(place.global_examples) * job_->flops_each(),
          .peak_flops = peak_flops_};
}

/// The last step's norm begins to be summed over the ranks, unless it is known.
void Trainer::sum_norm(const models::GradientNorm& norm) {
  norm_ = norm;
  if (!norm_.summed) norm_handle_ = session_->all_reduce_async("norm", view_scalar(norm_.shard_squares));
}

/// What the last step's result did not know yet.
void Trainer::know_loss(double loss_sum) {
  late_loss_ = false;
  unreported_->loss = loss_sum / unreported_targets_;
  check_diverged(*unreported_);
}

/// Listeners hear of a step once its norm is known: during the next one, or before an evaluation or a checkpoint.
void Trainer::report_last_step() {
  if (!unreported_) return;
  if (late_loss_) know_loss(job_->parallel().late_loss());
  if (std::exchange(late_norm_, false)) {
    const models::UpdateResult result = update_.late_result();
    unreported_->skipped = result.skipped;
    sum_norm(result.norm);
  }
  norm_handle_.wait();
  unreported_->grad_norm = norm_.value();
  const StepEvent event = *std::exchange(unreported_, std::nullopt);
  for (Listener* listener : listeners_) listener->on_step(event);
  check_gradients(event);
}

/// Before anything is stored or measured that they would have spoilt. With a loss scale they may overflow.
void Trainer::check_gradients(const StepEvent& event) {
  const models::LossScale* const scale = job_->loss_scale();
  if (std::isfinite(event.grad_norm) || (scale != nullptr && !scale->exhausted())) return;
  cli::collectively(*session_, [&] {
    if (scale == nullptr) {
      throw UsageError(
          fmt::format("the gradients are not finite at step {} (the training diverged); try an --lr below {}",
                      event.step, job_->options().lr));
    }
    throw UsageError(
        fmt::format("the gradients overflow f16 at step {} with the least loss scale (the training diverged, or f16 is "
                    "too narrow for this model); try --precision bf16, or an --lr below {}",
                    event.step, job_->options().lr));
  });
}

/// All of the last step is done: it is reported, and values are complete, and sound.
void Trainer::settle(std::int64_t steps_done) {
  report_last_step();
  job_->parallel().complete_values();
  check_values(steps_done);
}

/// What a step leaves may be infinite although its loss and its gradients were not. Each rank looks at its share. The
/// squares of floats are summed as f64, where they cannot overflow.
void Trainer::check_values(std::int64_t steps_done) {
  if (std::exchange(checked_at_, steps_done) == steps_done) return;
  models::Model& model = job_->model();
  std::vector<Tensor> values;
  for (std::size_t i = 0; i < model.parameters().size(); ++i)
    values.push_back(part_of(model.parameters()[i].value, job_->parallel().shards()[i]));
  for (const models::OptimizerTensor& state : job_->optimizer().state()) values.push_back(state.values);
  std::vector<double> squares(values.size());
  cli::collectively(*session_, [&] {
    models::Buffer memory;
    const Shape shape{std::ssize(values)};
    const Tensor sums = memory.make(model.compute(), DType::f64, shape, "the sums of squares of parameters");
    model.compute().sums_of_squares(values, sums);
    model.compute().read(sums, squares.data());
    if (std::ranges::all_of(squares, [](double square) { return std::isfinite(square); })) return;
    throw UsageError(
        fmt::format("the parameters, or the optimizer's state, are not finite behind step {} (the training diverged); "
                    "try an --lr below {}",
                    steps_done - 1, job_->options().lr));
  });
}

double Trainer::sum(double value) {
  session_->all_reduce("sum", view_scalar(value));
  return value;
}

models::Batch Trainer::next_batch() {
  check_reserve();
  const auto start = Clock::now();
  const models::Batch batch = batches_->next();
  data_seconds_ += seconds_since(start);
  return batch;
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

/// The last evaluation is of all. Where those before it were of some, the same ones say whether it is the best, and are
/// reported if there is no time for all. False: a rank was asked to stop before the end.
bool Trainer::evaluate(std::int64_t steps_done) {
  settle(steps_done);
  evaluated_at_ = steps_done;
  const bool last = steps_done == job_->last_step();
  const auto compared = last && !job_->eval_batches() ? evaluator_.evaluate_all()
                                                      : evaluator_.evaluate_some(seconds_between_evaluations());
  const auto of_all = last && compared && !compared->of.is_all() ? evaluator_.evaluate_all() : compared;
  // A run that is killed behind this has it twice, not never.
  evaluator_.report(steps_done, of_all ? of_all : compared);
  const std::int64_t settled_for = job_->eval_batches() ? job_->ranks() : 0;
  if (compared && checkpoints_->measured(steps_done, {compared->loss, compared->of, settled_for})) store(steps_done);
  return !evaluator_.stopped();
}

double Trainer::seconds_between_evaluations() const {
  return job_->step_time().seconds() *
         static_cast<double>(job_->options().eval_every.value_or(job_->sampler().steps_per_epoch()));
}

void Trainer::store(std::int64_t steps_done) {
  settle(steps_done);
  checkpoints_->store(steps_done);
}

bool Trainer::listener_gives_up() const {
  return std::ranges::any_of(listeners_, [](const Listener* listener) { return listener->gives_up(); });
}

}  // namespace kolo::train
