#pragma once

#include <cstdint>
#include <vector>

#include "models/compute/random.h"
#include "models/llama/llama.h"
#include "tests/models/models_testing.h"

namespace kolo::testing {

/// A Llama with storage.
struct BoundLlama : Bound<models::Llama> {
  using Bound::Bound;

  /// Larger weights than training begins with, and gains off one: every gradient is well away from zero.
  void spread() {
    models::Random random(3);
    for (const models::Parameter& parameter : model.parameters()) {
      const bool gain = parameter.shape.dims() == 1;
      for (float& value : floats_of(parameter.value)) value = (gain ? 1.0f : 0.0f) + 0.2f * random.normal();
    }
  }
};

/// Sequences of random tokens, each followed by the next.
struct TokenBatch {
  TokenBatch(std::int64_t sequences, std::int64_t positions, std::int64_t vocabulary, std::uint64_t seed = 7)
      : count(sequences) {
    models::Random random(seed);
    for (std::int64_t i = 0; i < sequences * positions; ++i) {
      tokens.push_back(static_cast<std::int32_t>(random.below(static_cast<std::uint64_t>(vocabulary))));
      targets.push_back(static_cast<std::int32_t>(random.below(static_cast<std::uint64_t>(vocabulary))));
    }
  }
  models::Batch batch() const { return {.examples = count, .tokens = tokens, .targets = targets}; }

  std::int64_t count;
  std::vector<std::int32_t> tokens, targets;
};

}  // namespace kolo::testing
