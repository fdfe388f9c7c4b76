#include "models/data/images.h"

#include "models/data/augment.h"

namespace kolo::models {

void Images::gather(std::span<const std::int64_t> examples, std::int64_t epoch, BatchStorage& to) const {
  to.examples = static_cast<std::int64_t>(examples.size());
  to.inputs.resize(examples.size() * static_cast<std::size_t>(data_->input_size()));
  to.targets.clear();
  float* out = to.inputs.data();
  for (const std::int64_t example : examples) {
    write(example, epoch, out);
    out += data_->input_size();
    to.targets.push_back(data_->labels[static_cast<std::size_t>(example)]);
  }
}

void Images::write(std::int64_t example, std::int64_t epoch, float* out) const {
  const std::int64_t size = data_->input_size();
  const std::uint8_t* const in = data_->inputs.data() + example * size;
  if (!augment_seed_) {
    for (std::int64_t i = 0; i < size; ++i) out[i] = static_cast<float>(in[i]) / 255.0f;
    return;
  }
  constexpr std::uint64_t apart = 0x1f83d9abfb41bd6b;  // from the streams of weights and order of the same seed
  Random random(*augment_seed_ ^ apart, static_cast<std::uint64_t>(epoch * data_->count() + example));
  augment({data_->channels, data_->rows, data_->columns}, in, random, out);
}

}  // namespace kolo::models
