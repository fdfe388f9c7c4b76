#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "models/compute/aligned.h"
#include "models/compute/kernels.h"
#include "models/llama/llama.h"
#include "models/llama/shape.h"

namespace kolo::models {

/// A Llama that reads one token after the other, and remembers the keys and values of those before: what a token costs
/// grows with the text only by its attention. The numbers are those of Llama::next_logits but for rounding; products
/// are in f32 whatever the model's precision.
class LlamaDecoder {
 public:
  /// model  bound to its storage; must outlive this, and not be trained meanwhile
  explicit LlamaDecoder(const Llama& model);

  /// Reads the next token of the text, which must be in the vocabulary, and returns the logits of the one behind it:
  /// [vocabulary], valid until the next call. Errors: ModelError if the model has no more positions.
  std::span<const float> read(std::int32_t token);

  /// How many tokens were read.
  std::int64_t seen() const { return seen_; }

  /// Forgets the text.
  void begin_anew();

 private:
  const float* value(std::size_t index) const { return parameters_[index].value.data(); }
  const float* value(std::int64_t layer, LayerPart part) const { return value(layer_parameter(layer, part)); }
  void attention(std::int64_t layer);
  void attend(std::int64_t layer, std::int64_t head, float* out);
  void ffn(std::int64_t layer);
  void norm(const float* gain);
  void add(std::int64_t count, const float* in, const float* matrix);

  LlamaSettings settings_;
  LlamaShape shape_;
  std::span<const Parameter> parameters_;
  Rotations rotations_;
  const Kernels* loops_;
  std::int64_t seen_ = 0;
  std::vector<std::vector<float>> keys_, values_;  // of each layer and kv head: [seen, head_width]
  AlignedFloats x_, h_, wide_, out_, query_, logits_;
  std::vector<float> scores_;
};

}  // namespace kolo::models
