#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "models/compute/buffer.h"
#include "models/compute/kernels.h"
#include "models/compute/views.h"
#include "models/layers/rotations.h"
#include "models/llama/llama.h"
#include "models/llama/shape.h"

namespace kolo::models {

/// Incremental decoding with a KV cache: only attention costs more per token in a longer text. The logits are those of
/// Llama::next_logits except for rounding; products are f32 in any precision of the model. Runs on the host, by a copy
/// of the values of a model that is elsewhere.
class LlamaDecoder {
 public:
  /// model  bound to its storage; must outlive this, and must not be trained meanwhile
  explicit LlamaDecoder(Llama& model);

  /// Reads the next token, which must be in the vocabulary, and returns the logits of its successor: [vocabulary],
  /// valid until the next call. Errors: ModelError if the model has no more positions.
  std::span<const float> read(std::int32_t token);

  /// The number of tokens read.
  std::int64_t seen() const { return seen_; }

  /// Forgets the text.
  void begin_anew();

 private:
  const float* value(std::size_t index) const { return all_values_.floats().data() + begins_[index]; }
  const float* value(std::int64_t layer, LayerPart part) const { return value(layer_parameter(layer, part)); }
  void attention(std::int64_t layer);
  void attend(std::int64_t layer, std::int64_t head, float* out);
  void ffn(std::int64_t layer);
  void norm(const float* gain);
  void add(std::int64_t count, const float* in, const float* matrix);

  LlamaSettings settings_;
  LlamaShape shape_;
  OnHost all_values_;  // of the model, one behind the other
  std::vector<std::int64_t> begins_;
  Rotations rotations_;
  const Kernels* loops_;
  std::int64_t seen_ = 0;
  std::vector<std::vector<float>> keys_, values_;  // of each layer and kv head: [seen, head_width]
  AlignedFloats x_, h_, wide_, out_, query_, logits_;
  std::vector<float> scores_;
};

/// How the next token is chosen.
struct Sampling {
  std::int64_t count = 0;    ///< tokens to write
  double temperature = 0.8;  ///< logits are divided by it; 0 takes the likeliest token
  std::int64_t top_k = 0;    ///< only the k likeliest are drawn; 0: all
  double top_p = 1;          ///< only the fewest of these that together are at least so likely (Holtzman et al. 2020,
                             ///< arXiv:1904.09751)
  std::uint64_t seed = 1;
  /// Called before each token with the number written; false: no more are. May be empty.
  std::function<bool(std::int64_t)> progress{};
};

/// Checks a prompt for generate(). Errors: ModelError if it is empty or has a token outside the vocabulary.
void check_prompt(const Llama& model, std::span<const std::int32_t> prompt);

/// Generates tokens after a prompt, and returns them without it. Of a prompt longer than the model's positions the last
/// tokens are used; when all positions are used, it continues from the last half of them. The same seed gives the same
/// tokens. Errors: as check_prompt(), and ModelError for a count, top_k or temperature below 0, a top_p not in (0, 1].
std::vector<std::int32_t> generate(Llama& model, std::span<const std::int32_t> prompt, const Sampling& sampling);

}  // namespace kolo::models
