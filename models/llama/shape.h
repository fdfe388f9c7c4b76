#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "models/model/settings.h"

namespace kolo::models {

/// Extents that follow from a Llama's settings. A layer's parameters are in the order of HF transformers: queries, keys
/// and values are adjacent, so that one matrix product computes all three; so are gate and up.
struct LlamaShape {
  /// Errors: ModelError for sizes that make no model.
  explicit LlamaShape(const LlamaSettings& settings);

  std::int64_t dim, layers, heads, kv_heads, ffn, vocabulary;
  std::int64_t head_dim;
  std::int64_t head_width;  ///< elements of a row of one head: head_dim rounded up for vectors
  std::int64_t qkv;         ///< elements of a row of queries, keys and values of all heads
  double norm_eps;

  std::int64_t q_column(std::int64_t head) const { return head * head_dim; }
  std::int64_t k_column(std::int64_t kv_head) const { return dim + kv_head * head_dim; }
  std::int64_t v_column(std::int64_t kv_head) const { return dim + (kv_heads + kv_head) * head_dim; }
};

/// The parameters of a layer, in their order.
enum class LayerPart : std::size_t { q, k, v, o, gate, up, down, norm1, norm2, count };

/// Index of one of them.
constexpr std::size_t layer_parameter(std::int64_t layer, LayerPart part) {
  return 1 + static_cast<std::size_t>(layer) * static_cast<std::size_t>(LayerPart::count) +
         static_cast<std::size_t>(part);
}

/// rotation_steps() of a Llama's heads, maybe scaled.
std::vector<double> rotation_steps(const LlamaSettings& settings);

}  // namespace kolo::models
