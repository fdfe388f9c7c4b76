#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "apps/train/agreement.h"
#include "apps/train/options.h"
#include "models/aligned.h"
#include "models/data/dataset.h"
#include "models/data/sampler.h"
#include "models/model.h"
#include "models/optimizer.h"

namespace kolo::train {

/// What one rank trains, and what on. Made by each rank alone.
class Job {
 public:
  /// Reads the data, builds the model and gives it its first parameters.
  /// Errors: models::ModelError, UsageError, std::bad_alloc.
  Job(const Options& options, int rank, int ranks);
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  const models::DataSplit& data() const { return data_; }
  models::Model& model() { return *model_; }
  models::Optimizer& optimizer() { return *optimizer_; }
  models::Sampler& sampler() { return sampler_; }

  /// How many updates of the parameters the run takes.
  std::int64_t last_step() const { return last_step_; }

  /// What must be equal on all ranks: the flags, and the data by a checksum.
  std::vector<Agreed> agreed() const;

  /// What is trained, how, and on what: some lines of text.
  std::string description() const;

 private:
  Options options_;
  int ranks_;
  models::DataSplit data_;
  std::unique_ptr<models::Model> model_;
  models::AlignedFloats values_;
  models::AlignedFloats gradients_;
  std::unique_ptr<models::Optimizer> optimizer_;
  models::Sampler sampler_;
  std::int64_t last_step_;
};

}  // namespace kolo::train
