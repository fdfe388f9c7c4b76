#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "models/model/model.h"
#include "models/model/settings.h"

namespace kolo::models {

/// The decoder of Touvron et al. 2023 (arXiv:2302.13971): RMS norms, rotary positions, grouped-query attention, SwiGLU.
///
/// Parameters have the names and shapes of public checkpoints ("model.embed_tokens.weight",
/// "model.layers.0.self_attn.q_proj.weight", …, "lm_head.weight" unless the head is tied), rotary pairs are (i, i +
/// head_dim/2). A batch's tokens are [examples, positions]; targets are the tokens that follow. Attention is causal and
/// stays within a sequence; a shorter one is padded at its end with targets of -1. Gradients
/// become final from the head to the embedding, which with a tied head is also the head. One thread at a time.
class Llama final : public Model {
 public:
  /// Errors: ModelError for sizes that make no model.
  explicit Llama(const LlamaSettings& settings, Precision precision = Precision::f32, bool recompute = false);
  ~Llama() override;

  std::span<const Parameter> parameters() const override;
  std::vector<std::size_t> backward_order() const override;
  void bind(std::span<float> values, std::span<float> gradients) override;

  /// Matrices normal with deviation 0.02, divided by √(2·layers) for those that write to the residual stream; norms 1.
  /// Parameter i takes its numbers, in order, from Random(seed, i).
  void initialise(std::uint64_t seed) override;

  using Model::forward_backward;
  BatchResult forward_backward(const Batch& batch, const GradReady& grad_ready, const Pass& pass) override;
  BatchResult evaluate(const Batch& batch) override;
  std::size_t activation_bytes() const override;

  /// Runs the forward pass only (targets are ignored) and returns [examples, positions, vocabulary]; valid until
  /// the next pass.
  std::span<const float> logits(const Batch& batch);

  /// The same of one sequence, and of one of its positions only: [vocabulary].
  std::span<const float> next_logits(std::span<const std::int32_t> tokens, std::int64_t position);

  const LlamaSettings& settings() const;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace kolo::models
