#pragma once

#include <cstdint>

#include <kolo/detail/cpu.h>

#include "models/compute/precision.h"

namespace kolo::models {

/// One head's attention over one sequence. Rows of q, k and v have `width` elements, a multiple of 16; those beyond
/// head_dim are 0. q is already scaled by 1/√head_dim.
struct HeadView {
  std::int64_t positions = 0;
  std::int64_t width = 0;
  std::int64_t head_dim = 0;
  const float* q = nullptr;     ///< [positions, width]
  const float* k = nullptr;     ///< [positions, width]
  const float* v = nullptr;     ///< [positions, width]
  std::int64_t out_stride = 0;  ///< elements between rows of `out` and `d_out`
};

/// The gradients of one head's attention.
struct HeadGradients {
  float* dq = nullptr;  ///< [positions, width], overwritten
  float* dk = nullptr;  ///< [positions, width], added to: heads share keys and values
  float* dv = nullptr;  ///< as dk
};

/// One head's columns in rows of all heads, and its rotary embedding: pair (i, i + half) at a position is rotated by
/// the angle with the cosine and sine at [position, i].
struct HeadRows {
  std::int64_t positions = 0;
  std::int64_t half = 0;          ///< head_dim / 2
  std::int64_t width = 0;         ///< elements of a row of one head, as in HeadView
  std::int64_t stride = 0;        ///< elements of a row of all heads
  const float* cosine = nullptr;  ///< null: neither rotated nor scaled
  const float* sine = nullptr;
  float scale = 1;  ///< factor of rotated elements
};

/// Filters that are computed at a time, and the number of floats that vectors of any processor divide.
inline constexpr std::int64_t filters_at_a_time = 4;
inline constexpr std::int64_t vector_floats = 16;

/// Where the inputs of filters are; ImagePlan (image_plan.h) says what parts and planes are.
struct TapView {
  std::int64_t taps = 0;
  std::int64_t parts = 1;
  std::int64_t filter = 0;                ///< floats between filters
  std::int64_t plane = 0;                 ///< floats between parts
  std::int64_t count = 0;                 ///< of each part, a multiple of vector_floats
  const std::int64_t* offsets = nullptr;  ///< [parts, taps]
};

/// Pooling of one filter's planes: of the window in a row and a column, pixel n is at offsets[n] + row·pitch + column.
struct PoolView {
  std::int64_t pixels = 0;  ///< of a window
  std::int64_t rows = 0, columns = 0;
  std::int64_t pitch = 0;
  std::int64_t plane = 0, parts = 1;
  bool tiled = false;  ///< each pixel of the image is in one window
  const std::int64_t* offsets = nullptr;
  const std::int32_t* inside = nullptr;  ///< [parts, plane]: -1 for a pixel of the image, else 0; null: all that matter
  float floor = 0;                       ///< the least result: 0 with ReLU, else -INFINITY
  float scale = 1, shift = 0;            ///< x·scale + shift is pooled

  /// Numbers of a row of choices.
  std::int64_t width() const { return (columns + vector_floats - 1) / vector_floats * vector_floats; }
};

/// Vectorised kernels, compiled for one instruction set and one precision of MatmulItem. The same input gives the same
/// bits in every run on one machine.
struct Kernels {
  /// out = values, rounded.
  void (*narrow)(std::int64_t count, const float* values, MatmulItem* out);

  /// out = values.
  void (*widen)(std::int64_t count, const MatmulItem* values, float* out);

  /// sum = x + more (`more` may be null: then sum is not written); h = sum / rms(sum) · gain, rounded;
  /// inverse[row] = 1 / rms. x, more, sum, h are [rows, dim]; rms(x) = √(mean of squares + eps).
  void (*rms_norm)(std::int64_t rows, std::int64_t dim, const float* x, const float* more, float* sum,
                   const float* gain, double eps, MatmulItem* h, float* inverse);

  /// Backward of rms_norm: d += the gradient of x, given dh; d_gain += that of gain; d_rounded = d, rounded, unless
  /// null.
  void (*rms_norm_backward)(std::int64_t rows, std::int64_t dim, const float* x, const float* gain,
                            const float* inverse, const float* dh, float* d, float* d_gain, MatmulItem* d_rounded);

  /// Copies one head out of rows of all heads, rotated; elements beyond head_dim become 0.
  void (*split_heads)(const HeadRows& rows, const float* in, float* out);

  /// The inverse: rotates by the opposite angle, and writes the rows, rounded, to `out` from element `at` on.
  void (*merge_heads)(const HeadRows& rows, const float* in, MatmulItem* out, std::int64_t at);

  /// s = silu(gate) · up, rounded. A row of gate_up is gate [ffn], then up [ffn].
  void (*swiglu)(std::int64_t rows, std::int64_t ffn, const float* gate_up, MatmulItem* s);

  /// Backward of swiglu: d_gate_up from ds, rounded; and s again. In f32 d_gate_up may be gate_up, and s may be ds.
  void (*swiglu_backward)(std::int64_t rows, std::int64_t ffn, const float* gate_up, const float* ds,
                          MatmulItem* d_gate_up, MatmulItem* s);

  /// Causal attention. Writes head_dim elements of each row of out [positions, out_stride], and into log_sums
  /// [positions] the logarithm of each row's sum of exponentials. scratch: attention_scratch() floats.
  void (*attend)(const HeadView& head, MatmulItem* out, float* log_sums, float* scratch);

  /// Backward of attend, from d_out, the gradient of `out`.
  void (*attend_backward)(const HeadView& head, const MatmulItem* out, const float* log_sums, const float* d_out,
                          const HeadGradients& gradients, float* scratch);

  /// Cross-entropy of softmax(logits) [classes] against a target; `index` becomes that of the first of the largest
  /// logits. Writes scale · gradient into d_logits unless it is null; it may be `logits`.
  double (*cross_entropy)(std::int64_t classes, const float* logits, std::int64_t target, float scale, float* d_logits,
                          std::int64_t* index);

  /// out[row][part][i] = first[row] + Σ over taps of weights[tap][row] · in[offsets[part][tap] + i], of
  /// filters_at_a_time rows.
  void (*correlate)(const TapView& view, const float* weights, const float* first, const float* in, float* out);

  /// sums[tap][row], of vector_floats each, += the products d[row][part][i] · in[offsets[part][tap] + i].
  void (*correlate_back)(const TapView& view, const float* d, const float* in, float* sums);

  /// y [rows, columns] = the largest pixel of each window, at least the floor, NaN if one is NaN; chosen [rows, width]:
  /// the number of the first that is so, or view.pixels if none is above the floor, and beyond the columns.
  void (*pool)(const PoolView& view, const float* planes, float* y, std::uint16_t* chosen);

  /// d_planes [parts, plane] = the gradient of what is pooled. What lies between the rows must be 0 before. Returns its
  /// sum.
  float (*pool_backward)(const PoolView& view, const float* d, const std::uint16_t* chosen, float* d_planes);

  /// Sums of x - centre, and of its squares, where `inside` is not 0.
  void (*plane_sums)(std::int64_t count, const float* x, const std::int32_t* inside, float centre, float* sum,
                     float* square);

  /// The sum of d · (x - centre) where `inside` is not 0.
  float (*plane_products)(std::int64_t count, const float* d, const float* x, const std::int32_t* inside, float centre);

  /// d = a·d + b·x + c where `inside` is not 0, else 0. Returns its sum.
  float (*combine_planes)(std::int64_t count, float a, float b, float c, const float* x, const std::int32_t* inside,
                          float* d);
};

/// Extents of attention's blocks and of their memory.
namespace scratch {

inline constexpr std::int64_t row_block = 32;   ///< rows of scores at a time
inline constexpr std::int64_t key_block = 256;  ///< keys at a time: 32 KiB of scores
inline constexpr std::int64_t score_floats = row_block * key_block;

}  // namespace scratch

/// Floats of scratch memory of attend and attend_backward.
constexpr std::int64_t attention_scratch(std::int64_t width) {
  return 2 * scratch::score_floats + 3 * scratch::row_block * width;
}

/// The fastest kernels for this processor.
const Kernels& kernels(Precision precision);

/// The kernels of one instruction set.
struct KernelSet {
  Kernels f32, bf16, f16;
};
extern const KernelSet baseline_kernels, avx2_kernels, avx512_kernels;

const KernelSet& kernel_set(detail::InstructionSet instructions);

}  // namespace kolo::models
