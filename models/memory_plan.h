#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "models/model/model.h"
#include "models/model/settings.h"
#include "models/optim/optimizer.h"

namespace kolo::models {

/// Bytes of a GPU's memory that training takes. The libraries' own memory is not in it.
struct MemoryPlan {
  std::size_t parameters = 0;  ///< values and gradients
  std::size_t passes = 0;      ///< activations, scratch memory, values in 16 bits; for Compute::reserve()
  std::size_t optimizer = 0;   ///< its state and scratch memory

  std::size_t all() const { return parameters + passes + optimizer; }
};

/// Found before any is taken, by a step on a GPU that only counts.
///
/// settings  of the model, which is for a GPU
/// shards    as make_optimizer() takes them
/// batch     of the size of a step's micro-batch, with any numbers
/// Errors: as make_model(); ModelError where this build has no models on GPUs.
MemoryPlan plan_memory(std::string_view model, ModelSettings settings, const OptimizerSettings& optimizer,
                       std::vector<Shard> shards, const Batch& batch);

}  // namespace kolo::models
