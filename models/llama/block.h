#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "models/compute/buffer.h"
#include "models/compute/kernels.h"
#include "models/llama/shape.h"

namespace kolo::models {

/// Weights of one layer: matrices in the precision of products, gains of the norms in f32.
struct BlockWeights {
  const MatmulItem* qkv = nullptr;
  const MatmulItem* o = nullptr;
  const MatmulItem* gate_up = nullptr;
  const MatmulItem* down = nullptr;
  const float* norm1 = nullptr;
  const float* norm2 = nullptr;
};

/// Activations that the backward pass of a layer needs. The input x is separate: with recomputation it is the only one
/// that is kept, and h2 holds first one norm's result, then the other's.
struct BlockKept {
  Buffer h1, inverse1;   ///< first norm: result, and 1/rms of each row
  Buffer q, k, v;        ///< [sequence, head, position, head_width], rotated
  Buffer out, log_sums;  ///< attention: result, and its sums as in Kernels::attend
  Buffer mid;            ///< input plus attention
  Buffer h2, inverse2;   ///< second norm
  Buffer gate_up;        ///< [row, 2·ffn]

  std::size_t bytes() const;
};

/// Scratch memory, shared by all layers.
struct BlockScratch {
  Buffer wide;           ///< the largest of [row, qkv], [row, ffn]
  Buffer narrow;         ///< [row, dim]: the residual of attention or ffn; in the backward pass dh
  Buffer rounded;        ///< 16-bit precisions: [row, 2·ffn] and [row, ffn], or [row, qkv]
  Buffer head_gradient;  ///< of one sequence's q, k, v
  Buffer attention;

  std::size_t bytes() const;
};

/// The gradient of the residual stream, [row, dim], in f32 and in the precision of products.
struct Descent {
  float* d = nullptr;
  MatmulItem* d_rounded = nullptr;  ///< f32: is d
};

/// One layer's passes over rows of a batch: x + attention(norm1(x)), and to that + ffn(norm2(·)).
class LlamaBlock {
 public:
  /// recompute  the forward pass is repeated before the backward pass
  LlamaBlock(const LlamaShape& shape, Precision precision, bool recompute, const Rotations& rotations,
             BlockScratch& scratch)
      : shape_(&shape),
        precision_(precision),
        recompute_(recompute),
        rotations_(&rotations),
        scratch_(&scratch),
        loops_(&kernels(precision)) {}

  /// x = below (+ more, unless null), then the layer without its last addition: its output is kept.mid +
  /// scratch.narrow. repeat() computes only the activations of this layer.
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
  void attention_backward(const Sequences& batch, BlockKept& kept, const float* d_out, MatmulItem* d_qkv) const;
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
