#include "apps/train/job.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <string_view>

#include "apps/train/options/model_settings.h"
#include "models/compute/product.h"
#include "models/memory_plan.h"
#include "models/registry.h"

namespace kolo::train {
namespace {

std::int64_t last_step_of(const Options& options, std::int64_t steps_per_epoch) {
  constexpr auto no_limit = std::numeric_limits<std::int64_t>::max();
  return std::min(options.steps.value_or(no_limit), options.epochs ? *options.epochs * steps_per_epoch : no_limit);
}

models::Schedule schedule_of(const Options& options, int ranks, std::int64_t steps) {
  const double scale = options.scale_lr ? ranks : 1;
  return {.curve = options.schedule,
          .lr = scale * options.lr,
          .min_lr = scale * options.min_lr.value_or(options.lr / 10),
          .warmup = options.warmup,
          .steps = steps};
}

/// ZeRO-1 where it is asked for, else among the ranks of one node: through shared memory reduce_scatter and all_gather
/// cost no more than an all_reduce. Not worth it for small parameters.
std::size_t shards_from(const Options& options, const Session& session) {
  const bool one_node = session.local_size() == session.size();
  return options.zero.value_or(one_node ? 1 : 0) == 1 ? least_sharded : std::numeric_limits<std::size_t>::max();
}

bool uses(const Options& options, models::Precision precision) {
  return options.precision == precision || options.wire == precision;
}

/// Errors: UsageError without a GPU.
Device device_of(const Options& options, const Session& session) {
  if (options.device == DeviceKind::cpu) return {};
  const Device device = session.device();
  if (device.kind == options.device) return device;
  throw UsageError(
      "--device cuda finds no GPU (a build without CUDA, no driver, or none that this process may see); look at "
      "nvidia-smi and CUDA_VISIBLE_DEVICES, or leave it out");
}

std::string recipe_text(const Options& options, const models::Schedule& schedule) {
  std::string text = fmt::format("{}, lr {:.6g}", options.optimizer, schedule.lr);
  if (schedule.curve != models::Curve::constant)
    text += fmt::format(" {} to {:.6g}", to_string(schedule.curve), schedule.min_lr);
  if (schedule.warmup > 0) text += fmt::format(", warm-up {}", schedule.warmup);
  if (options.optimizer == "sgd") {
    text += fmt::format(", momentum {}", options.momentum);
  } else {
    text += fmt::format(", betas {} {}, decay {}", options.beta1, options.beta2, options.weight_decay);
  }
  if (options.clip > 0) text += fmt::format(", clip {}", options.clip);
  return text;
}

}  // namespace

Job::Job(const Options& options, Session& session)
    : options_(options), ranks_(session.size()), eval_batches_(options.eval_batches) {
  const auto pretrained = open_pretrained(options_);
  settings_ = model_settings(options_, pretrained);
  settings_.device = device_of(options_, session);
  options_.tokenizer = tokenizer_file(options_);
  if (!options_.tokenizer.empty()) {
    tokenizer_.emplace(std::filesystem::path(options_.tokenizer));
    fit_to_tokenizer(settings_, options_, *tokenizer_);
  }
  read_corpus();
  fit_to_data(settings_, options_, corpus_, session);
  build(session);
  if (pretrained) {
    const std::string remark = pretrained->load(*model_);
    start_ = "from " + options_.init + (remark.empty() ? "" : fmt::format(" ({})", remark));
  } else {
    model_->initialise(options_.seed);
    start_ = fmt::format("seed {}", options_.seed);
  }
  sampler_.emplace(models::SamplerSettings{.examples = corpus_.train->count(),
                                           .batch = options_.batch,
                                           .ranks = ranks_,
                                           .rank = session.rank(),
                                           .accumulate = options_.accumulate,
                                           .seed = options_.seed,
                                           .order = options_.order});
  last_step_ = last_step_of(options_, sampler_->steps_per_epoch());
  schedule_ = schedule_of(options_, ranks_, last_step_);
  if (uses(options_, models::Precision::f16)) loss_scale_.emplace();
}

void Job::read_corpus() {
  corpus_ = options_.takes_tokens()
                ? read_tokens(options_, tokenizer(), positions_of(options_, settings_), settings_.llama.vocabulary)
                : read_images(options_);
  const bool coloured = corpus_.images && corpus_.images->train.channels > 1;
  if (coloured && !options_.clip_given) options_.clip = 1;  // without it these often stop learning at a rate of 0.1
  if (options_.batch_given && options_.batch > corpus_.train->count()) {
    throw UsageError(fmt::format("--batch is {}, but there are only {} examples to train on; give at most as many",
                                 options_.batch, corpus_.train->count()));
  }
}

void Job::build(Session& session) {
  model_ = models::make_model(options_.model, settings_);
  values_.emplace(session, static_cast<std::size_t>(value_elements(*model_)), settings_.device);
  const bool trains = !options_.eval_only;
  if (trains) gradients_.emplace(session, static_cast<std::size_t>(gradient_elements(*model_)), settings_.device);
  model_->bind(values_->all(), trains ? gradients_->all() : Tensor{});
  parallel_.emplace(session, *model_,
                    ParallelSettings{.shards_from = shards_from(options_, session),
                                     .wire = trains ? options_.wire : models::Precision::f32,
                                     .reduces_in_passes = static_cast<bool>(settings_.reduce)});
  if (!trains) return;
  optimizer_ = models::make_optimizer(optimizer_settings(), model_->parameters(), parallel_->shards());
  if (options_.device != DeviceKind::cpu) plan_memory();
}

models::OptimizerSettings Job::optimizer_settings() const {
  return {.name = options_.optimizer,
          .momentum = options_.momentum,
          .beta1 = options_.beta1,
          .beta2 = options_.beta2,
          .eps = options_.eps,
          .weight_decay = options_.weight_decay};
}

/// So that steps take none, and what is too much fails here.
void Job::plan_memory() {
  constexpr std::size_t libraries = std::size_t{1200} << 20;  // CUDA's context and kernels, as measured on an H200
  const auto of = [this](std::int64_t each) { return static_cast<std::size_t>(options_.batch * each); };
  const bool takes_tokens = options_.takes_tokens();
  const std::vector<float> inputs(of(takes_tokens ? 0 : settings_.image().elements()));
  const std::vector<std::int32_t> targets(of(targets_each()));
  models::Batch batch{.examples = options_.batch, .inputs = inputs, .targets = targets};
  if (takes_tokens) batch.tokens = targets;
  const models::MemoryPlan plan =
      models::plan_memory(options_.model, settings_, optimizer_settings(), parallel_->shards(), batch);
  gpu_bytes_ = libraries + plan.all();
  if (options_.wire != models::Precision::f32)
    gpu_bytes_ += static_cast<std::size_t>(gradients_->all().elements()) * size_of(DType::f16);
  model_->compute().reserve(plan.passes);
}

double Job::flops_each() const {
  const auto flops = models::kind_of(options_.model).flops;
  return flops == nullptr ? 0 : flops(*model_, settings_, targets_each());
}

bool Job::evaluation_due(std::int64_t steps_done) const {
  if (steps_done == last_step_) return true;
  const auto& every = options_.eval_every;
  return every ? steps_done % *every == 0 : steps_done > 0 && sampler_->place(steps_done - 1).last_of_epoch;
}

std::vector<cli::Agreed> Job::agreed() const {
  auto all = agreed_part(options_);
  all.push_back({"--tokenizer", tokenizer_checksum()});
  all.push_back({"--data", fmt::format("checksum {:016x}, {}", corpus_.fingerprint, corpus_.description)});
  return all;
}

std::vector<cli::Agreed> Job::measured() const {
  auto all = measured_part(options_);
  all.push_back({"--tokenizer", tokenizer_checksum()});
  return all;
}

std::vector<cli::Agreed> Job::shape() const {
  auto all = shaping_part(options_);
  all.push_back({"--tokenizer", tokenizer_checksum()});
  all.push_back({number_of_ranks, fmt::format("{}", ranks_)});
  return all;
}

std::string Job::tokenizer_checksum() const {
  return tokenizer_ ? fmt::format("checksum {:016x}", tokenizer_->fingerprint()) : "none";
}

std::string Job::description() const {
  const std::string_view no_eval = corpus_.held_out->count() > 0 ? ""
                                   : options_.takes_tokens()     ? "eval      none: nothing is held out\n"
                                                             : "eval      none: the data are too few to hold any out\n";
  const std::string each = options_.takes_tokens() ? fmt::format(" of {} tokens", targets_each()) : "";
  const std::string slower =
      options_.device != DeviceKind::cpu || models::multiplies_unwidened(options_.precision)
          ? ""
          : fmt::format(
                "precision {}: slower than f32, since this processor has no products of it: operands are "
                "widened to f32\n",
                to_string(options_.precision));
  const std::string memory =
      gpu_bytes_ == 0 ? "" : fmt::format("memory    {} planned for, on each rank's GPU\n", format_bytes(gpu_bytes_));
  const std::string times = options_.accumulate > 1 ? fmt::format(" x {}", options_.accumulate) : "";
  return fmt::format(
      "model     {}, {} parameters, {}\n"
      "{}data      {}\n{}"
      "training  {}\n"
      "          {} rank{} x batch {}{}{}, {} steps\n{}",
      options_.model, gradient_elements(*model_), start_, slower, corpus_.description, no_eval,
      recipe_text(options_, schedule_), ranks_, ranks_ == 1 ? "" : "s", options_.batch, times, each, last_step_,
      memory);
}

}  // namespace kolo::train
