#include "models/llama/shape.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string_view>

#include "models/util/error.h"

namespace kolo::models {
namespace {

void check_size(std::string_view what, std::int64_t size) {
  constexpr std::int64_t largest = std::int64_t{1} << 24;  // keeps every product of two far from overflow
  if (size >= 1 && size <= largest) return;
  throw ModelError(fmt::format("a llama cannot have {} {} (1 to {}); start from a preset", what, size, largest));
}

void check(const RopeScaling& scaling) {
  if (scaling.factor > 0 && scaling.low_freq_factor > 0 && scaling.high_freq_factor > scaling.low_freq_factor &&
      scaling.original_positions > 0) {
    return;
  }
  throw ModelError(fmt::format(
      "a llama's rope_scaling cannot have factor {}, low_freq_factor {}, high_freq_factor {} and "
      "original_max_position_embeddings {} (all are positive, and the second is below the third); give a plain Llama "
      "checkpoint",
      scaling.factor, scaling.low_freq_factor, scaling.high_freq_factor, scaling.original_positions));
}

void check(const LlamaSettings& settings) {
  check_size("a vocabulary of", settings.vocabulary);
  check_size("a dim of", settings.dim);
  check_size("layers numbering", settings.layers);
  check_size("heads numbering", settings.heads);
  check_size("key and value heads numbering", settings.kv_heads);
  check_size("an ffn of", settings.ffn);
  check_size("positions numbering", settings.positions);
  if (settings.dim % settings.heads != 0 || settings.dim / settings.heads % 2 != 0) {
    throw ModelError(fmt::format(
        "a llama's dim of {} does not give each of {} heads an even share; choose a dim that is a multiple of {}",
        settings.dim, settings.heads, 2 * settings.heads));
  }
  if (settings.heads % settings.kv_heads != 0) {
    throw ModelError(fmt::format("{} heads cannot share {} key and value heads evenly; choose a divisor of {}",
                                 settings.heads, settings.kv_heads, settings.heads));
  }
  if (!(settings.rope_theta > 0) || !(settings.norm_eps > 0)) {
    throw ModelError(fmt::format("a llama's rope_theta ({}) and norm_eps ({}) must be positive; start from a preset",
                                 settings.rope_theta, settings.norm_eps));
  }
  if (settings.rope_scaling) check(*settings.rope_scaling);
}

/// The wavelengths of the first training fit `periods` times into its texts.
double scaled(double frequency, const RopeScaling& by) {
  const double periods = static_cast<double>(by.original_positions) * frequency / (2 * std::numbers::pi);
  const double kept = std::clamp((periods - by.low_freq_factor) / (by.high_freq_factor - by.low_freq_factor), 0.0, 1.0);
  return kept * frequency + (1 - kept) * frequency / by.factor;
}

}  // namespace

LlamaShape::LlamaShape(const LlamaSettings& settings)
    : dim((check(settings), settings.dim)),
      layers(settings.layers),
      heads(settings.heads),
      kv_heads(settings.kv_heads),
      ffn(settings.ffn),
      vocabulary(settings.vocabulary),
      head_dim(dim / heads),
      head_width((head_dim + 15) / 16 * 16),
      qkv(dim + 2 * kv_heads * head_dim),
      norm_eps(settings.norm_eps) {}

std::vector<Parameter> llama_parameters(const LlamaSettings& settings) {
  const LlamaShape shape(settings);
  std::vector<Parameter> parameters;
  const auto add = [&](const std::string& name, const Shape& extents) {
    parameters.push_back({"model." + name + ".weight", extents, {}, {}});
  };
  const std::int64_t kv = shape.kv_heads * shape.head_dim;
  add("embed_tokens", {shape.vocabulary, shape.dim});
  for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
    const auto in_layer = [&](std::string_view name) { return fmt::format("layers.{}.{}", layer, name); };
    add(in_layer("self_attn.q_proj"), {shape.dim, shape.dim});
    add(in_layer("self_attn.k_proj"), {kv, shape.dim});
    add(in_layer("self_attn.v_proj"), {kv, shape.dim});
    add(in_layer("self_attn.o_proj"), {shape.dim, shape.dim});
    add(in_layer("mlp.gate_proj"), {shape.ffn, shape.dim});
    add(in_layer("mlp.up_proj"), {shape.ffn, shape.dim});
    add(in_layer("mlp.down_proj"), {shape.dim, shape.ffn});
    add(in_layer("input_layernorm"), {shape.dim});
    add(in_layer("post_attention_layernorm"), {shape.dim});
  }
  add("norm", {shape.dim});
  if (!settings.tied_head) parameters.push_back({"lm_head.weight", {shape.vocabulary, shape.dim}, {}, {}});
  return parameters;
}

Rotations::Rotations(std::int64_t head_dim, double theta, const std::optional<RopeScaling>& scaling)
    : half_(head_dim / 2) {
  for (std::int64_t i = 0; i < half_; ++i) {
    const double step = std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim));
    steps_.push_back(scaling ? scaled(step, *scaling) : step);
  }
}

void Rotations::need(std::int64_t positions) {
  for (auto position = static_cast<std::int64_t>(cosine_.size()) / half_; position < positions; ++position) {
    for (const double step : steps_) {
      cosine_.push_back(static_cast<float>(std::cos(static_cast<double>(position) * step)));
      sine_.push_back(static_cast<float>(std::sin(static_cast<double>(position) * step)));
    }
  }
}

}  // namespace kolo::models
