#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "models/compute/buffer.h"
#include "models/compute/kernels.h"
#include "models/llama/shape.h"

namespace kolo::models {

/// Weights of one layer as its passes read them: matrices in the precision of products, gains of the norms as they are.
struct BlockWeights {
  const Work* qkv = nullptr;
  const Work* o = nullptr;
  const Work* gate_up = nullptr;
  const Work* down = nullptr;
  const float* norm1 = nullptr;
  const float* norm2 = nullptr;
};

/// What the backward pass of a layer needs of its forward pass. The input x is apart, for it is all that is kept of a
/// layer whose pass is to be repeated; then h2 holds first one norm's result, then the other's.
struct BlockKept {
  Buffer h1, inverse1;   ///< first norm: result, and 1/rms of each row
  Buffer q, k, v;        ///< [sequence, head, position, head_width], turned
  Buffer out, log_sums;  ///< attention: result, and its sums as in Kernels::attend
  Buffer mid;            ///< input plus attention
  Buffer h2, inverse2;   ///< second norm
  Buffer gate_up;        ///< [row, 2·ffn]

  std::size_t bytes() const;
};

/// Memory that all layers work in, one after the other.
struct BlockScratch {
  Buffer wide;           ///< the largest of [row, qkv], [row, ffn]
  Buffer narrow;         ///< [row, dim]: what a half of a layer adds to its input; on the way back, dh
  Buffer work;           ///< 16-bit precisions: [row, 2·ffn] and [row, ffn], or [row, qkv]
  Buffer head_gradient;  ///< of one sequence's q, k, v
  Buffer attention;

  std::size_t bytes() const;
};

/// The gradient of the residual stream on its way down, [row, dim], and the same in the precision of products.
struct Descent {
  float* d = nullptr;
  Work* d_work = nullptr;  ///< f32: is d
};

/// One layer's passes over rows of a batch: x + attention(norm1(x)), and to that + ffn(norm2(·)).
class LlamaBlock {
 public:
  /// recompute  the layer's pass is repeated before its way back
  LlamaBlock(const LlamaShape& shape, Precision precision, bool recompute, const Rotations& rotations,
             BlockScratch& scratch)
      : shape_(&shape),
        precision_(precision),
        recompute_(recompute),
        rotations_(&rotations),
        scratch_(&scratch),
        loops_(&kernels(precision)) {}

  /// x = below (+ more, unless null); then the layer's passes but for the last addition: its output is kept.mid plus
  /// scratch.narrow. repeat() leaves out what only serves the layer above.
  void forward(const Sequences& batch, const BlockWeights& weights, const float* below, const float* more, float* x,
               BlockKept& kept) const;
  void repeat(const Sequences& batch, const BlockWeights& weights, const float* x, BlockKept& kept) const;

  /// `descent` comes in as the gradient of the layer's output and leaves as that of its input. `gradient(part)` is
  /// where a parameter's gradient goes, or is added (norms: always added); `ready(part)` is called when it is final.
  struct Gradients {
    std::function<float*(LayerPart)> gradient;
    std::function<void(LayerPart)> ready;
    bool add = false;
  };
  void backward(const Sequences& batch, const BlockWeights& weights, const float* x, BlockKept& kept,
                const Descent& descent, const Gradients& to) const;

 private:
  Buffer& first_norm(BlockKept& kept) const { return recompute_ ? kept.h2 : kept.h1; }
  void repeat_first_norm(const Sequences& batch, const BlockWeights& weights, const float* x, BlockKept& kept) const;
  void attention(const Sequences& batch, const BlockWeights& weights, BlockKept& kept) const;
  void first_half(const Sequences& batch, const BlockWeights& weights, const float* x, BlockKept& kept) const;
  void split(const Sequences& batch, const float* qkv, BlockKept& kept) const;
  void ffn_backward(const Sequences& batch, const BlockWeights& weights, BlockKept& kept, const Descent& descent,
                    const Gradients& to) const;
  void attention_backward(const Sequences& batch, BlockKept& kept, const float* d_out, Work* d_qkv) const;
  HeadRows head_rows(const Sequences& batch, bool turned, float scale) const;
  HeadView view(const Sequences& batch, const BlockKept& kept, std::int64_t sequence, std::int64_t head) const;

  const LlamaShape* shape_;
  Precision precision_;
  bool recompute_;
  const Rotations* rotations_;
  BlockScratch* scratch_;
  const Kernels* loops_;
};

}  // namespace kolo::models
