#include "models/llama/llama.h"

#include <fmt/format.h>

#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "models/layers/sequences.h"
#include "models/llama/head.h"
#include "models/llama/shape.h"

namespace kolo::models {

Llama::Llama(const LlamaSettings& settings, Precision precision, bool recompute, Device device)
    : LayeredModel({.positions = settings.positions}, precision, device), settings_(settings) {
  const LlamaShape shape(settings);
  const Heads heads{.heads = shape.heads, .kv_heads = shape.kv_heads, .head_dim = shape.head_dim};
  const std::vector<double> steps = rotation_steps(settings);
  const double residual = 0.02 / std::sqrt(2.0 * static_cast<double>(shape.layers));
  auto embedding = std::make_unique<Embedding>(list(), "model.embed_tokens", shape.vocabulary, shape.dim);
  Embedding* const tied = settings.tied_head ? embedding.get() : nullptr;
  add(std::move(embedding));
  std::shared_ptr<Recompute::Shared> shared;
  for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
    const auto named = [&](const char* part) { return fmt::format("model.layers.{}.{}", layer, part); };
    auto attention = std::make_unique<Attention>(list(), named("self_attn"), shape.dim, heads, steps, residual);
    auto ffn = std::make_unique<SwiGlu>(list(), named("mlp"), shape.dim, shape.ffn, residual);
    auto norm1 = std::make_unique<RmsNorm>(list(), named("input_layernorm"), shape.dim, shape.norm_eps);
    auto norm2 = std::make_unique<RmsNorm>(list(), named("post_attention_layernorm"), shape.dim, shape.norm_eps);
    auto block = std::make_unique<Sequential>();
    block->add(std::make_unique<Residual>(std::move(norm1), std::move(attention)));
    block->add(std::make_unique<Residual>(std::move(norm2), std::move(ffn)));
    if (!recompute) {
      add(std::move(block));
      continue;
    }
    if (!shared) shared = std::make_shared<Recompute::Shared>(block->make_kept());
    add(std::make_unique<Recompute>(std::move(block), shared));
  }
  end<LanguageHead>(LanguageHead::Names{.norm = "model.norm", .head = "lm_head"}, shape.dim, shape.vocabulary,
                    shape.norm_eps, tied);
}

std::span<const float> Llama::logits(const Batch& batch) {
  return LayeredModel::logits(batch);
}

}  // namespace kolo::models
