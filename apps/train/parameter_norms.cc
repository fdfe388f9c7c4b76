#include "apps/train/parameter_norms.h"

#include <cmath>
#include <cstddef>
#include <iterator>
#include <utility>

#include "models/compute/compute.h"

namespace kolo::train {

ParameterNorms::ParameterNorms(Session& session, Job& job, std::vector<Listener*> listeners)
    : session_(&session),
      job_(&job),
      listeners_(std::move(listeners)),
      every_(job.options().tensorboard.empty() ? 0 : job.options().norms_every) {}

/// Of values, and then of gradients, those that this rank counts: its shards, and on rank 0 what all ranks have whole.
std::vector<double> ParameterNorms::squares(const models::Update& update) {
  const std::span<const models::Parameter> parameters = job_->model().parameters();
  const std::vector<models::Shard>& shards = job_->parallel().shards();
  const std::vector<double> gradients = update.squares();
  std::vector<std::size_t> counted;
  std::vector<Tensor> values;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (!parameters[i].trained || (!shards[i].split && session_->rank() > 0)) continue;
    counted.push_back(i);
    values.push_back(part_of(parameters[i].value, shards[i]));
  }
  std::vector<double> all(2 * parameters.size()), sums(counted.size());
  if (counted.empty()) return all;
  models::Compute& compute = job_->model().compute();
  const Tensor of_values = memory_.make(compute, DType::f64, {std::ssize(sums)}, "norms of parameters");
  compute.sums_of_squares(values, of_values);
  compute.read(of_values, sums.data());
  for (std::size_t number = 0; number < counted.size(); ++number) {
    all[counted[number]] = sums[number];
    all[parameters.size() + counted[number]] = gradients[counted[number]];
  }
  return all;
}

void ParameterNorms::on_step(std::int64_t step, const models::Update& update) {
  if (every_ == 0 || step % every_ != 0) return;
  std::vector<double> all = squares(update);
  session_->all_reduce("norms of parameters", view(all));
  std::vector<ParameterNorm> norms;
  const std::span<const models::Parameter> parameters = job_->model().parameters();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (!parameters[i].trained) continue;
    norms.push_back({.name = parameters[i].name,
                     .value = std::sqrt(all[i]),
                     .gradient = std::sqrt(all[parameters.size() + i]) * update.gradient_scale()});
  }
  for (Listener* listener : listeners_) listener->on_norms(step, norms);
}

}  // namespace kolo::train
