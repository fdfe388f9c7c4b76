#pragma once

// Attention in blocks of rows and keys (Dao et al. 2022, arXiv:2205.14135); see kernel_vectors.h for how this is
// compiled.
//
// A block of rows passes over the keys block by block, and keeps each row's largest score so far and the sum of
// exp(score - largest). When a block of keys has a larger score, the earlier sums are rescaled. Only the logarithm of a
// row's sum is kept; the backward pass recomputes scores and weights from it. With weight p of a row and a key, and dp
// = d_out · v of the key: ds = p · (dp − Σ d_out·out).

#include "models/compute/kernel_tiles.h"

namespace kolo::models {
namespace {

using scratch::key_block;
using scratch::panel_keys;
using scratch::row_block;
using scratch::score_stride;

inline std::int64_t least(std::int64_t a, std::int64_t b) {
  return a < b ? a : b;
}

inline void fill_floats(float* out, std::int64_t count, float value) {
  for (std::int64_t i = 0; i < count; ++i) out[i] = value;
}

inline std::int64_t vector_multiple(std::int64_t count) {
  return (count + 15) / 16 * 16;
}

/// Transposes keys into panels [positions / panel_keys, width, panel_keys]; columns beyond the last key are 0.
inline void transpose_panels(const HeadView& head, const float* rows, float* panels) {
  for (std::int64_t first = 0; first < head.positions; first += panel_keys) {
    const std::int64_t keys = least(panel_keys, head.positions - first);
    for (std::int64_t i = 0; i < head.width; ++i) {
      float* const out = panels + i * panel_keys;
      for (std::int64_t key = 0; key < keys; ++key) out[key] = rows[(first + key) * head.width + i];
      for (std::int64_t key = keys; key < panel_keys; ++key) out[key] = 0;
    }
    panels += panel_keys * head.width;
  }
}

/// A block of rows (queries) and a block of keys.
struct Block {
  std::int64_t row = 0, rows = 0;
  std::int64_t key = 0, keys = 0;

  /// Keys of the block that row `row + r` attends to (causal mask).
  std::int64_t seen(std::int64_t r) const { return least(keys, row + r - key + 1); }
};

/// products [rows, score_stride] = the block's rows of `left` · its columns of `panels`.
inline void multiply_panels(const HeadView& head, const Block& block, const float* left, const float* panels,
                            float* products) {
  for (std::int64_t at = 0; at < block.keys; at += panel_keys) {
    const Tile tile{.rows = block.rows,
                    .columns = vector_multiple(least(panel_keys, block.keys - at)),
                    .depth = head.width,
                    .a_row = head.width,
                    .a_step = 1,
                    .b_stride = panel_keys,
                    .c_stride = score_stride};
    multiply_tile<false>(tile, left, panels + (block.key + at) * head.width, products + at);
  }
}

inline float largest_score(std::int64_t count, const float* scores) {
  Floats most = all(-INFINITY);
  over(count,
       [&](std::int64_t i, auto extent) { most = larger(fill(load(scores + i, extent), extent, -INFINITY), most); });
  return largest_of(most);
}

/// scores = exp(scores − offset), 0 from `seen` to `keys`; returns their sum.
inline float exponentials(std::int64_t seen, std::int64_t keys, float offset, float* scores) {
  Floats sum{};
  over(seen, [&](std::int64_t i, auto extent) {
    const Floats power = fill(exponential(load(scores + i, extent) - offset), extent, 0.0f);
    sum += power;
    store(scores + i, power, extent);
  });
  fill_floats(scores + seen, keys - seen, 0);
  return sum_of(sum);
}

/// The running maximum and sum of each row of a block.
struct Rows {
  float largest[row_block];
  float sum[row_block];
};

inline void forward_block(const HeadView& head, const Block& block, const float* panels, float* scores, float* out,
                          Rows& rows) {
  multiply_panels(head, block, head.q + block.row * head.width, panels, scores);
  for (std::int64_t r = 0; r < block.rows; ++r) {
    float* const row = scores + r * score_stride;
    const std::int64_t seen = block.seen(r);
    const float before = rows.largest[r], here = largest_score(seen, row);
    const float largest = before > here ? before : here;
    if (largest == -INFINITY) {  // every score overflowed
      fill_floats(row, block.keys, 0);
      continue;
    }
    const float sum = exponentials(seen, block.keys, largest, row);
    const float shrink = before == -INFINITY ? 0.0f : ::expf(before - largest);
    rows.largest[r] = largest;
    rows.sum[r] = rows.sum[r] * shrink + sum;
    if (block.key == 0 || shrink == 1) continue;
    over(head.width, [&](std::int64_t i, auto extent) {
      float* const at = out + r * head.width + i;
      store(at, load(at, extent) * shrink, extent);
    });
  }
  const Tile tile{.rows = block.rows,
                  .columns = head.width,
                  .depth = block.keys,
                  .a_row = score_stride,
                  .a_step = 1,
                  .b_stride = head.width,
                  .c_stride = head.width};
  multiply_tile<true>(tile, scores, head.v + block.key * head.width, out);
}

template <class Number>
void attend(const HeadView& head, MatmulItem* out, float* log_sums, float* memory) {
  float* const panels = memory;
  float* const scores = panels + scratch::panel_floats(head.positions, head.width);
  float* const sums = scores + scratch::score_floats;
  transpose_panels(head, head.k, panels);
  for (std::int64_t first = 0; first < head.positions; first += row_block) {
    const std::int64_t count = least(row_block, head.positions - first);
    Rows rows;
    fill_floats(rows.largest, row_block, -INFINITY);
    fill_floats(rows.sum, row_block, 0);
    fill_floats(sums, count * head.width, 0);
    for (std::int64_t key = 0; key < first + count; key += key_block) {
      const Block block{.row = first, .rows = count, .key = key, .keys = least(key_block, first + count - key)};
      forward_block(head, block, panels, scores, sums, rows);
    }
    for (std::int64_t r = 0; r < count; ++r) {
      log_sums[first + r] = rows.largest[r] + ::logf(rows.sum[r]);
      const float share = 1 / rows.sum[r];
      over(head.head_dim, [&](std::int64_t i, auto extent) {
        Number::store(out, (first + r) * head.out_stride + i, load(sums + r * head.width + i, extent) * share, extent);
      });
    }
  }
}

/// A block of rows of the backward pass.
struct RowsBack {
  float* d_out;                 ///< [row_block, width]
  float inner[row_block] = {};  ///< Σ d_out·out of each row
};

inline void backward_block(const HeadView& head, const Block& block, const float* key_panels, const float* value_panels,
                           const float* log_sums, const RowsBack& rows, const HeadGradients& gradients, float* weights,
                           float* d_scores) {
  const float* const q = head.q + block.row * head.width;
  multiply_panels(head, block, q, key_panels, weights);
  multiply_panels(head, block, rows.d_out, value_panels, d_scores);
  for (std::int64_t r = 0; r < block.rows; ++r) {
    float* const weight = weights + r * score_stride;
    float* const d_score = d_scores + r * score_stride;
    exponentials(block.seen(r), block.keys, log_sums[block.row + r], weight);
    const float inner = rows.inner[r];
    over(block.keys, [&](std::int64_t i, auto extent) {
      store(d_score + i, load(weight + i, extent) * (load(d_score + i, extent) - inner), extent);
    });
  }
  const std::int64_t at = block.key * head.width;
  Tile tile{.rows = block.rows,
            .columns = head.width,
            .depth = block.keys,
            .a_row = score_stride,
            .a_step = 1,
            .b_stride = head.width,
            .c_stride = head.width};
  multiply_tile<true>(tile, d_scores, head.k + at, gradients.dq + block.row * head.width);
  tile = {.rows = block.keys,
          .columns = head.width,
          .depth = block.rows,
          .a_row = 1,
          .a_step = score_stride,
          .b_stride = head.width,
          .c_stride = head.width};
  multiply_tile<true>(tile, d_scores, q, gradients.dk + at);
  multiply_tile<true>(tile, weights, rows.d_out, gradients.dv + at);
}

template <class Number>
void take_rows(const HeadView& head, std::int64_t first, std::int64_t count, const MatmulItem* out, const float* d_out,
               RowsBack& rows) {
  fill_floats(rows.d_out, count * head.width, 0);
  for (std::int64_t r = 0; r < count; ++r) {
    const std::int64_t at = (first + r) * head.out_stride;
    Floats inner{};
    over(head.head_dim, [&](std::int64_t i, auto extent) {
      const Floats gradient = load(d_out + at + i, extent);
      inner += gradient * Number::load(out, at + i, extent);
      store(rows.d_out + r * head.width + i, gradient, extent);
    });
    rows.inner[r] = sum_of(inner);
  }
}

template <class Number>
void attend_backward(const HeadView& head, const MatmulItem* out, const float* log_sums, const float* d_out,
                     const HeadGradients& gradients, float* memory) {
  float* const key_panels = memory;
  float* const value_panels = key_panels + scratch::panel_floats(head.positions, head.width);
  float* const weights = value_panels + scratch::panel_floats(head.positions, head.width);
  float* const d_scores = weights + scratch::score_floats;
  RowsBack rows{.d_out = d_scores + scratch::score_floats};
  transpose_panels(head, head.k, key_panels);
  transpose_panels(head, head.v, value_panels);
  fill_floats(gradients.dq, head.positions * head.width, 0);
  for (std::int64_t first = 0; first < head.positions; first += row_block) {
    const std::int64_t count = least(row_block, head.positions - first);
    take_rows<Number>(head, first, count, out, d_out, rows);
    for (std::int64_t key = 0; key < first + count; key += key_block) {
      const Block block{.row = first, .rows = count, .key = key, .keys = least(key_block, first + count - key)};
      backward_block(head, block, key_panels, value_panels, log_sums, rows, gradients, weights, d_scores);
    }
  }
}

}  // namespace
}  // namespace kolo::models
