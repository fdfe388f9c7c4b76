#include "models/data/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "models/compute/random.h"

namespace kolo::models {
Sampler::Sampler(const SamplerSettings& settings) : settings_(settings) {
  if (settings.examples < 1) throw ModelError("there are no examples to train on; give a data set that has some");
  if (settings.batch < 1) throw ModelError(fmt::format("the batch size is {}; give at least 1", settings.batch));
  if (settings.accumulate < 1)
    throw ModelError(fmt::format("a step has {} micro-batches; give at least 1", settings.accumulate));
  if (settings.ranks < 1 || settings.rank < 0 || settings.rank >= settings.ranks) {
    throw ModelError(fmt::format("there is no rank {} of {}", settings.rank, settings.ranks));
  }
  // A batch larger than the set is the whole set, and a step of more batches than there are is all of them; cut so that
  // no product overflows.
  settings_.batch = std::min(settings.batch, settings.examples);
  settings_.accumulate = std::min(settings.accumulate, (settings.examples - 1) / per_micro_batch() + 1);
}

std::int64_t Sampler::steps_per_epoch() const {
  return (settings_.examples + per_step() - 1) / per_step();
}

void Sampler::enter(std::int64_t epoch) {
  epoch_ = epoch;
  order_.resize(static_cast<std::size_t>(settings_.examples));
  std::iota(order_.begin(), order_.end(), 0);
  if (settings_.order == Order::sequential) return;
  constexpr std::uint64_t apart = 0x5a3d1e2b4c6f7089;  // from the streams that make the weights of the same seed
  Random random(settings_.seed ^ apart, static_cast<std::uint64_t>(epoch));
  for (std::size_t i = order_.size(); i-- > 1;) std::swap(order_[i], order_[random.below(i + 1)]);
}

StepPlace Sampler::place(std::int64_t step) const {
  const std::int64_t steps = steps_per_epoch(), step_in_epoch = step % steps;
  return {.epoch = step / steps,
          .last_of_epoch = step_in_epoch + 1 == steps,
          .global_examples = std::min(per_step(), settings_.examples - step_in_epoch * per_step())};
}

StepShare Sampler::at(std::int64_t step, std::int64_t micro) {
  const StepPlace here = place(step);
  if (here.epoch != epoch_) enter(here.epoch);
  const std::int64_t first =
      step % steps_per_epoch() * per_step() + micro * per_micro_batch() + settings_.rank * settings_.batch;
  const std::int64_t begin = std::min(first, settings_.examples);
  const std::int64_t end = std::min(begin + settings_.batch, settings_.examples);
  return {here, std::span(order_).subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin))};
}

}  // namespace kolo::models
