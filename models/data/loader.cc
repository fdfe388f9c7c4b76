#include "models/data/loader.h"

#include <algorithm>

namespace kolo::models {

void BatchLoader::begin(std::int64_t examples) {
  inputs_.resize(static_cast<std::size_t>(examples * data_->input_size()));
  targets_.resize(static_cast<std::size_t>(examples));
  examples_ = 0;
}

void BatchLoader::append(std::int64_t example) {
  const std::int64_t size = data_->input_size();
  const std::uint8_t* const in = data_->inputs.data() + example * size;
  float* const out = inputs_.data() + examples_ * size;
  for (std::int64_t i = 0; i < size; ++i) out[i] = static_cast<float>(in[i]) / 255.0f;
  targets_[static_cast<std::size_t>(examples_++)] = data_->labels[static_cast<std::size_t>(example)];
}

Batch BatchLoader::gather(std::span<const std::int64_t> examples) {
  begin(static_cast<std::int64_t>(examples.size()));
  for (std::int64_t example : examples) append(example);
  return {.examples = examples_, .inputs = inputs_, .targets = targets_};
}

Batch BatchLoader::load(const Range& range) {
  begin(range.count);
  for (std::int64_t i = 0; i < range.count; ++i) append(range.first + i);
  return {.examples = examples_, .inputs = inputs_, .targets = targets_};
}

BatchResult evaluate(Model& model, const Dataset& data, const Range& range) {
  constexpr std::int64_t batch = 256;
  BatchLoader loader(data);
  BatchResult sum;
  for (std::int64_t done = 0; done < range.count; done += batch) {
    const BatchResult part = model.evaluate(loader.load({range.first + done, std::min(batch, range.count - done)}));
    sum.loss_sum += part.loss_sum;
    sum.correct += part.correct;
    sum.targets += part.targets;
  }
  return sum;
}

}  // namespace kolo::models
