#pragma once

#include <cstdint>

#include "models/compute/kernels.h"
#include "models/llama/block.h"

namespace kolo::models {

/// The last norm, the product with the head, and the loss, computed in groups of rows, so that the memory of logits is
/// bounded.
class LlamaHead {
 public:
  LlamaHead(const LlamaShape& shape, Precision precision)
      : shape_(&shape), precision_(precision), loops_(&kernels(precision)) {}

  /// The last layer's output, `below` + `more`, [rows, dim]; and the weights.
  struct Input {
    std::int64_t rows = 0;
    const float* below = nullptr;
    const float* more = nullptr;
    const float* norm = nullptr;
    const MatmulItem* head = nullptr;
    std::span<const std::int32_t> targets;
  };
  /// The gradients; `d_norm` is accumulated.
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
