#pragma once

#include <cstdint>

#include <kolo/detail/cpu.h>

#include "models/compute/precision.h"

namespace kolo::models {

/// One head's attention over one sequence. Rows of q, k and v are `width` numbers, a multiple of 16, of which those
/// beyond head_dim are 0; q is already scaled.
struct HeadView {
  std::int64_t positions = 0;
  std::int64_t width = 0;
  std::int64_t head_dim = 0;
  const float* q = nullptr;     ///< [positions, width]
  const float* k = nullptr;     ///< [positions, width]
  const float* v = nullptr;     ///< [positions, width]
  std::int64_t out_stride = 0;  ///< numbers from a row of `out` and `d_out` to the next
};

/// Where the gradients of one head's attention go.
struct HeadGradients {
  float* dq = nullptr;  ///< [positions, width], overwritten
  float* dk = nullptr;  ///< [positions, width], added to: heads share keys and values
  float* dv = nullptr;  ///< likewise
};

/// Where one head's numbers lie in rows of all heads' numbers, and how they are turned: pair (i, i + half) at a
/// position by the angle whose cosine and sine stand at [position, i].
struct HeadRows {
  std::int64_t positions = 0;
  std::int64_t half = 0;          ///< of the head's numbers
  std::int64_t width = 0;         ///< of a row of the head's own, as in HeadView
  std::int64_t stride = 0;        ///< from one position to the next in rows of all heads
  const float* cosine = nullptr;  ///< null: nothing is turned, nor scaled
  const float* sine = nullptr;
  float scale = 1;  ///< what is turned is multiplied by it, too
};

/// One image of a block of filters, [rows, columns, block], which pooling by 2×2 makes [rows/2, columns/2, block]; an
/// odd last row or column is left out.
struct PoolView {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t block = 0;
  const float* x = nullptr;
  const float* scale = nullptr;  ///< [block]: x · scale + shift is pooled; null: x
  const float* shift = nullptr;
};

/// Loops over rows of numbers, compiled for one kind of processor and one precision of `Work`. All are vectorised, and
/// give the same bits for the same input in every run on one machine.
struct Kernels {
  /// out = values, rounded.
  void (*narrow)(std::int64_t count, const float* values, Work* out);

  /// out = values.
  void (*widen)(std::int64_t count, const Work* values, float* out);

  /// sum = x + more (`more` may be null: then sum is not written); h = sum / rms(sum) · gain, rounded;
  /// inverse[row] = 1 / rms. x, more, sum, h are [rows, dim]; rms(x) = √(mean of squares + eps).
  void (*rms_norm)(std::int64_t rows, std::int64_t dim, const float* x, const float* more, float* sum,
                   const float* gain, double eps, Work* h, float* inverse);

  /// Back through rms_norm: d += the gradient of x, given dh; d_gain += that of gain; d_work = d, rounded, unless null.
  void (*rms_norm_backward)(std::int64_t rows, std::int64_t dim, const float* x, const float* gain,
                            const float* inverse, const float* dh, float* d, float* d_gain, Work* d_work);

  /// Turns one head's numbers, from rows of all heads' into rows of its own, of which what lies beyond them becomes 0.
  void (*split_heads)(const HeadRows& rows, const float* in, float* out);

  /// The way back: turns by the opposite angle, and puts the rows, rounded, behind number `at` of `out`.
  void (*merge_heads)(const HeadRows& rows, const float* in, Work* out, std::int64_t at);

  /// s = silu(gate) · up, rounded. A row of gate_up is gate [ffn], then up [ffn].
  void (*swiglu)(std::int64_t rows, std::int64_t ffn, const float* gate_up, Work* s);

  /// d_gate_up of ds, rounded, and s once more. In f32 d_gate_up may be gate_up, and s may be ds.
  void (*swiglu_backward)(std::int64_t rows, std::int64_t ffn, const float* gate_up, const float* ds, Work* d_gate_up,
                          Work* s);

  /// Attention of the rows to themselves and those before them. out [positions, out_stride] gets head_dim numbers per
  /// row; log_sums [positions]: of each row of scores the logarithm of the sum of exponentials. Scratch: as
  /// attention_scratch() says.
  void (*attend)(const HeadView& head, Work* out, float* log_sums, float* scratch);

  /// The way back, from the gradient of `out`.
  void (*attend_backward)(const HeadView& head, const Work* out, const float* log_sums, const float* d_out,
                          const HeadGradients& gradients, float* scratch);

  /// Cross-entropy of softmax(logits) [classes] against a target; `index` gets the first of the largest logits. Writes
  /// scale · gradient unless d_logits is null; it may be `logits`. Elements below 1e-20 become 0.
  double (*cross_entropy)(std::int64_t classes, const float* logits, std::int64_t target, float scale, float* d_logits,
                          std::int64_t* index);

  /// pooled = the largest of four neighbours, or 0 if that is more.
  void (*relu_pool)(const PoolView& view, float* pooled);

  /// d [rows, columns, block], overwritten: the first of the largest neighbours gets the gradient. May be view.x.
  void (*relu_pool_backward)(const PoolView& view, const float* d_pooled, float* d);

  /// Adds to sums and squares [columns] those of x − centre over the rows; a null centre is 0.
  void (*column_sums)(std::int64_t rows, std::int64_t columns, const float* x, const float* centre, double* sums,
                      double* squares);

  /// Adds to sums and products [columns] those of d and of d · (x − centre).
  void (*column_products)(std::int64_t rows, std::int64_t columns, const float* d, const float* x, const float* centre,
                          double* sums, double* products);

  /// d = a·d + b·x + c, column by column.
  void (*combine_columns)(std::int64_t rows, std::int64_t columns, const float* a, const float* x, const float* b,
                          const float* c, float* d);
};

/// Extents of the blocks that attention works in, and of the memory for them.
namespace scratch {

inline constexpr std::int64_t row_block = 32;                 ///< rows of scores at a time
inline constexpr std::int64_t key_block = 256;                ///< keys at a time: 32 KiB of scores
inline constexpr std::int64_t score_stride = key_block + 16;  ///< floats: rows do not fall onto the same cache sets
inline constexpr std::int64_t panel_keys = 64;                ///< columns of a panel of transposed keys
inline constexpr std::int64_t score_floats = row_block * score_stride;

/// Keys or values of one head, transposed.
constexpr std::int64_t panel_floats(std::int64_t positions, std::int64_t width) {
  return (positions + panel_keys - 1) / panel_keys * panel_keys * width;
}

}  // namespace scratch

/// Floats of scratch that attend and attend_backward want.
constexpr std::int64_t attention_scratch(std::int64_t positions, std::int64_t width) {
  return 2 * scratch::panel_floats(positions, width) + 2 * scratch::score_floats + scratch::row_block * width;
}

/// What runs fastest on this processor.
const Kernels& kernels(Precision precision);

/// The same loops, compiled for one instruction set each.
struct KernelSet {
  Kernels f32, bf16, f16;
};
extern const KernelSet baseline_kernels, avx2_kernels, avx512_kernels;

const KernelSet& kernel_set(detail::InstructionSet instructions);

}  // namespace kolo::models
