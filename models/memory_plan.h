#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "models/model/model.h"
#include "models/model/settings.h"
#include "models/optim/optimizer.h"

namespace kolo::models {

/// Bytes of a GPU's memory that training takes: values, gradients, the optimizer's state, activations and scratch
/// memory. Found before any is taken, by a step on a GPU that only counts. The libraries' own memory is not in it.
///
/// settings  of the model, which is for a GPU
/// shards    as make_optimizer() takes them
/// batch     of the size of a step's micro-batch, with any numbers
/// Errors: as make_model(); ModelError where this build has no models on GPUs.
std::size_t planned_memory(std::string_view model, ModelSettings settings, const OptimizerSettings& optimizer,
                           std::vector<Shard> shards, const Batch& batch);

}  // namespace kolo::models
