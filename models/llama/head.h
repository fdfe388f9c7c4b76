#pragma once

#include <cstdint>

#include "models/compute/kernels.h"
#include "models/llama/block.h"

namespace kolo::models {

/// The last norm, the product with the head, and the loss. Rows go through it in groups, so that logits of a large
/// vocabulary take bounded memory.
class LlamaHead {
 public:
  LlamaHead(const LlamaShape& shape, Precision precision)
      : shape_(&shape), precision_(precision), loops_(&kernels(precision)) {}

  /// What the last layer left: the sum of `below` and `more`, [rows, dim]; and the weights.
  struct Input {
    std::int64_t rows = 0;
    const float* below = nullptr;
    const float* more = nullptr;
    const float* norm = nullptr;
    const Work* head = nullptr;
    std::span<const std::int32_t> targets;
  };
  /// Where gradients go; `d_norm` is added to.
  struct Output {
    float* d_head = nullptr;
    float* d_norm = nullptr;
    Descent descent;  ///< overwritten
    bool add = false;
    float scale = 1;
  };

  BatchResult loss(const Input& input);
  BatchResult loss_and_gradients(const Input& input, const Output& output);

  /// [rows, vocabulary] of rows first … first+count-1; valid until the next call.
  const float* logits(const Input& input, std::int64_t first, std::int64_t count);

  std::size_t bytes() const;

 private:
  BatchResult row_losses(const Input& input, std::int64_t first, std::int64_t count, bool gradients, float scale);
  void group_backward(const Input& input, std::int64_t first, std::int64_t count, const Output& output);
  std::int64_t group() const;

  const LlamaShape* shape_;
  Precision precision_;
  const Kernels* loops_;
  Buffer x_, h_, inverse_, logits_, d_logits_, d_h_;
};

}  // namespace kolo::models
