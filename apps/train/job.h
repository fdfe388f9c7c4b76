#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <kolo/session.h>

#include "apps/cli/agreement.h"
#include "apps/memory.h"
#include "apps/parallel_model.h"
#include "apps/train/data/corpus.h"
#include "apps/train/options/options.h"
#include "apps/train/reports/time_left.h"
#include "models/data/sampler.h"
#include "models/model/model.h"
#include "models/model/settings.h"
#include "models/optim/optimizer.h"
#include "models/optim/schedule.h"
#include "models/optim/update.h"
#include "models/tokenizer/tokenizer.h"

namespace kolo::train {

/// A row of Job::shape().
inline constexpr const char* number_of_ranks = "the number of ranks";

/// One rank's model, optimizer and data. Construction is not collective.
class Job {
 public:
  /// Reads the data, builds the model and gives it its first parameters.
  ///
  /// session  only to allocate, and for steps and the models that need it in their passes; must outlive this
  /// Errors: models::ModelError, UsageError, std::bad_alloc.
  Job(const Options& options, Session& session);
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  const Options& options() const { return options_; }
  /// With all sizes of the model.
  const models::ModelSettings& settings() const { return settings_; }
  const Corpus& corpus() const { return corpus_; }
  /// What encoded the text; null: bytes are tokens, or tokens are numbers that nothing explains.
  const models::Tokenizer* tokenizer() const { return tokenizer_ ? &*tokenizer_ : nullptr; }
  models::Model& model() { return *model_; }
  /// None where nothing is trained.
  models::Optimizer& optimizer() { return *optimizer_; }
  /// The model's steps over all ranks.
  ParallelModel& parallel() { return *parallel_; }
  const models::Sampler& sampler() const { return *sampler_; }
  const models::Schedule& schedule() const { return schedule_; }
  /// The loss scale; null unless gradients are computed or communicated in f16.
  models::LossScale* loss_scale() { return loss_scale_ ? &*loss_scale_ : nullptr; }

  /// Optimizer steps of the whole training.
  std::int64_t last_step() const { return last_step_; }
  /// Examples of a step, over all ranks and micro-batches, but for the last step of an epoch.
  std::int64_t examples_per_step() const { return options_.batch * ranks_ * options_.accumulate; }
  /// Targets of an example.
  std::int64_t targets_each() const { return corpus_.train->targets_each(); }
  /// FLOPs of the model's products in a step's passes over an example; 0: not known.
  double flops_each() const;
  /// Batches of a rank's evaluations but the last; 0: all. Nothing until --eval-batches, a checkpoint or the first
  /// evaluation says.
  const std::optional<std::int64_t>& eval_batches() const { return eval_batches_; }
  void settle_eval_batches(std::int64_t batches) { eval_batches_ = batches; }
  /// Whether the training is measured behind so many steps.
  bool evaluation_due(std::int64_t steps_done) const;
  /// How long steps take, of the run that this one resumes until there are some.
  StepTime& step_time() { return step_time_; }
  int ranks() const { return ranks_; }
  /// What must be equal on all ranks: the flags, and the data by a checksum.
  std::vector<cli::Agreed> agreed() const;
  /// What an evaluation depends on: flags, the tokenizer by a checksum.
  std::vector<cli::Agreed> measured() const;
  /// What shapes the run, as it is stored with checkpoints: flags, the tokenizer by a checksum, ranks.
  std::vector<cli::Agreed> shape() const;

  /// What is trained, how, and on what: some lines of text.
  std::string description() const;

 private:
  void read_corpus();
  void build(Session& session);
  models::OptimizerSettings optimizer_settings() const;
  void plan_memory();
  std::string tokenizer_checksum() const;

  Options options_;
  std::string start_;  // where the first values come from
  int ranks_;
  std::optional<std::int64_t> eval_batches_;
  StepTime step_time_;
  models::ModelSettings settings_;
  std::optional<models::Tokenizer> tokenizer_;
  Corpus corpus_;
  std::unique_ptr<models::Model> model_;
  std::optional<SharedFloats> values_;
  std::optional<SharedFloats> gradients_;  // like the optimizer: unless nothing is trained
  std::optional<ParallelModel> parallel_;
  std::unique_ptr<models::Optimizer> optimizer_;
  std::optional<models::Sampler> sampler_;
  std::optional<models::LossScale> loss_scale_;
  std::int64_t last_step_ = 0;
  std::size_t gpu_bytes_ = 0;  // that are planned
  models::Schedule schedule_;
};

}  // namespace kolo::train
