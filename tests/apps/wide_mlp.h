#pragma once

#include <algorithm>
#include <filesystem>
#include <vector>

#include "models/checkpoint/safetensors.h"
#include "models/compute/random.h"

namespace kolo::testing {

/// Writes an MLP (784, 32, 10) whose last weights are as large as `widest`: so many times larger than the loss's
/// gradients are those of the layer before it.
inline void write_wide_mlp(const std::filesystem::path& path, float widest) {
  constexpr std::int64_t inputs = 784, hidden = 32, classes = 10;
  models::Random random(1);
  const auto numbers = [&](std::int64_t count, float largest) {
    std::vector<float> all(static_cast<std::size_t>(count));
    std::ranges::generate(all, [&] { return random.symmetric(largest); });
    return all;
  };
  const auto first = numbers(hidden * inputs, 0.03f), second = numbers(classes * hidden, widest);
  const std::vector<float> first_bias(hidden, 0.1f), second_bias(classes);
  const std::vector<models::NamedValues> all{{"layers.0.weight", {hidden, inputs}, first},
                                             {"layers.0.bias", {hidden}, first_bias},
                                             {"layers.1.weight", {classes, hidden}, second},
                                             {"layers.1.bias", {classes}, second_bias}};
  models::write_safetensors(path, all);
}

}  // namespace kolo::testing
