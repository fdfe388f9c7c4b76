#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "models/compute/buffer.h"
#include "models/model/model.h"
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

/// Names and shapes of all parameters, as in public checkpoints.
std::vector<Parameter> llama_parameters(const LlamaSettings& settings);

/// The parameters of a layer, in their order.
enum class LayerPart : std::size_t { q, k, v, o, gate, up, down, norm1, norm2, count };

/// Index of one of them.
constexpr std::size_t layer_parameter(std::int64_t layer, LayerPart part) {
  return 1 + static_cast<std::size_t>(layer) * static_cast<std::size_t>(LayerPart::count) +
         static_cast<std::size_t>(part);
}

/// Sequences of one batch.
struct Sequences {
  std::int64_t count = 0;
  std::int64_t positions = 0;

  std::int64_t rows() const { return count * positions; }
};

/// Cosines and sines of rotary positions (Su et al. 2021, arXiv:2104.09864): pair i at position p is rotated by
/// p · theta^(-2i/head_dim), a frequency that may be scaled.
class Rotations {
 public:
  Rotations(std::int64_t head_dim, double theta, const std::optional<RopeScaling>& scaling = std::nullopt);

  /// [positions, head_dim / 2] each; grows to that many positions.
  void need(std::int64_t positions);
  const float* cosine() const { return cosine_.data(); }
  const float* sine() const { return sine_.data(); }
  std::int64_t half() const { return half_; }

 private:
  std::int64_t half_;
  std::vector<double> steps_;  // angle from one position to the next
  std::vector<float> cosine_, sine_;
};

}  // namespace kolo::models
