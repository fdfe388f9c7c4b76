#pragma once

#include <cstdint>
#include <span>

#include "models/layers/layered_model.h"
#include "models/model/settings.h"

namespace kolo::models {

/// The decoder of Touvron et al. 2023 (arXiv:2302.13971): RMS norms, rotary positions, grouped-query attention, SwiGLU.
///
/// Parameters have the names and shapes of public checkpoints ("model.embed_tokens.weight",
/// "model.layers.0.self_attn.q_proj.weight", …, "lm_head.weight" unless the head is tied), rotary pairs are (i, i +
/// head_dim/2). A batch's tokens are [examples, positions]; targets are the tokens that follow. Attention is causal and
/// stays within a sequence; a shorter one is padded at its end with targets of -1. With a tied
/// head the embedding's gradient is also the head's. One thread at a time.
class Llama final : public LayeredModel {
 public:
  /// recompute  keeps only each block's input, and repeats its pass forward before the pass back
  /// Errors: ModelError for sizes that make no model.
  ///
  /// Matrices begin normal with deviation 0.02, divided by √(2·layers) for those that write to the residual stream;
  /// norms with 1.
  explicit Llama(const LlamaSettings& settings, Precision precision = Precision::f32, bool recompute = false,
                 Device device = {});

  /// As LayeredModel::logits(): [sequences, positions, vocabulary].
  std::span<const float> logits(const Batch& batch);

  /// The logits that logits() gives for one sequence, of one of its positions only: [vocabulary].
  std::span<const float> next_logits(std::span<const std::int32_t> tokens, std::int64_t position) {
    return logits_of_rows({.examples = 1, .tokens = tokens}, position, 1);
  }

  const LlamaSettings& settings() const { return settings_; }

 private:
  LlamaSettings settings_;
};

}  // namespace kolo::models
