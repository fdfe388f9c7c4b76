#pragma once

// Attention in blocks of rows and keys (Dao et al. 2022, arXiv:2205.14135); see kernel_vectors.h for how this is
// compiled.
//
// A block of rows passes over the keys block by block, and keeps each row's largest score so far and the sum of
// exp(score - largest). When a block of keys has a larger score, the earlier sums are rescaled. Only the logarithm of a
// row's sum is kept; the backward pass recomputes scores and weights from it. With weight p of a row and a key, and dp
// = d_out · v of the key: ds = p · (dp − Σ d_out·out).
//
// Scores are [keys, row_block]: a vector holds those of adjacent rows and one key. So only a block of rows is ever
// transposed, and largest scores and sums are those of vectors.

#include <utility>

#include "models/compute/kernel_tiles.h"

namespace kolo::models {
namespace {

using scratch::key_block;
using scratch::row_block;

inline std::int64_t least(std::int64_t a, std::int64_t b) {
  return a < b ? a : b;
}

inline void fill_floats(float* out, std::int64_t count, float value) {
  for (std::int64_t i = 0; i < count; ++i) out[i] = value;
}

/// The lanes of the first or second half of a and b in turn: a0 b0 a1 b1 …
template <std::size_t half, std::size_t... lane>
inline Floats interleaved(Floats a, Floats b, std::index_sequence<lane...>) {
  return __builtin_shufflevector(a, b, static_cast<int>(lane / 2 + half * lanes / 2 + lane % 2 * lanes)...);
}

/// to [width, row_block] = rows [count, width], transposed; columns beyond the last row are 0. Interleaving the halves
/// of as many vectors as one has lanes moves a bit from the number of the lane to that of the vector.
inline void transpose_rows(std::int64_t count, std::int64_t width, const float* rows, float* to) {
  for (std::int64_t square = 0; square < row_block * width; square += lanes * lanes) {
    const std::int64_t row = square / (lanes * width) * lanes, column = square / lanes % width;
    Floats in[lanes], out[lanes];
    constexpr std::make_index_sequence<lanes> all;
    for (int i = 0; i < lanes; ++i)
      in[i] = row + i < count ? load(rows + (row + i) * width + column, Full{}) : Floats{};
    for (int step = 1; step < lanes; step *= 2) {
      for (std::int64_t i = 0; i < lanes / 2; ++i) {
        out[2 * i] = interleaved<0>(in[i], in[i + lanes / 2], all);
        out[2 * i + 1] = interleaved<1>(in[i], in[i + lanes / 2], all);
      }
      for (int i = 0; i < lanes; ++i) in[i] = out[i];
    }
    for (int i = 0; i < lanes; ++i) store(to + (column + i) * row_block + row, in[i], Full{});
  }
}

/// Rows (queries) and keys whose scores are computed at once.
struct Block {
  std::int64_t row = 0, rows = 0;
  std::int64_t key = 0, keys = 0;
  std::int64_t column = 0;  ///< of the first row, in blocks of row_block

  std::int64_t columns() const { return (rows + 15) / 16 * 16; }
};

/// Calls body for all blocks of rows first … first + count - 1. The later half of the rows passes alone over the last
/// keys, which the others do not attend to.
template <class Body>
inline void over_blocks(std::int64_t first, std::int64_t count, Body body) {
  const std::int64_t half = least(row_block / 2, count), end = first + half;
  for (std::int64_t key = 0; key < end; key += key_block) {
    body(Block{.row = first, .rows = count, .key = key, .keys = least(key_block, end - key)});
  }
  if (count > half) body(Block{.row = end, .rows = count - half, .key = end, .keys = count - half, .column = half});
}

/// products [keys, row_block] = the block's rows of `keys` · its columns of `rows` [width, row_block].
inline void multiply_keys(const HeadView& head, const Block& block, const float* keys, const float* rows,
                          float* products) {
  const Tile tile{.rows = block.keys,
                  .columns = block.columns(),
                  .depth = head.width,
                  .a_row = head.width,
                  .a_step = 1,
                  .b_stride = row_block,
                  .c_stride = row_block};
  multiply_tile<false>(tile, keys + block.key * head.width, rows + block.column, products);
}

/// Scores of the block; -∞ of keys behind the row (causal mask).
inline void score(const HeadView& head, const Block& block, const float* rows, float* scores) {
  multiply_keys(head, block, head.k, rows, scores);
  for (std::int64_t key = block.row + 1; key < block.key + block.keys; ++key) {
    fill_floats(scores + (key - block.key) * row_block, least(key - block.row, block.columns()), -INFINITY);
  }
}

/// out [rows, width] += the transposed `factors` [keys, row_block] · the block's rows of `of_keys`.
inline void add_to_rows(const HeadView& head, const Block& block, const float* factors, const float* of_keys,
                        float* out) {
  const Tile tile{.rows = block.rows,
                  .columns = head.width,
                  .depth = block.keys,
                  .a_row = 1,
                  .a_step = row_block,
                  .b_stride = head.width,
                  .c_stride = head.width};
  multiply_tile<true>(tile, factors, of_keys + block.key * head.width, out);
}

/// The block's rows of `out` += factors [keys, row_block] · of_rows [rows, width].
inline void add_to_keys(const HeadView& head, const Block& block, const float* factors, const float* of_rows,
                        float* out) {
  const Tile tile{.rows = block.keys,
                  .columns = head.width,
                  .depth = block.rows,
                  .a_row = row_block,
                  .a_step = 1,
                  .b_stride = head.width,
                  .c_stride = head.width};
  multiply_tile<true>(tile, factors, of_rows, out + block.key * head.width);
}

/// What is known of each row of a block.
struct Rows {
  float largest[row_block];
  float sum[row_block];
  float shrink[row_block];  ///< what earlier sums are multiplied by
};

/// scores = exp(scores − the row's largest so far), which go into the rows' sums.
template <int vectors>
inline void weigh(const Block& block, float* scores, Rows& rows) {
  Floats offset[vectors], sum[vectors] = {};
  for (int v = 0; v < vectors; ++v) offset[v] = load(rows.largest + block.column + v * lanes, Full{});
  for (std::int64_t key = 0; key < block.keys; ++key) {
    for (int v = 0; v < vectors; ++v) {
      offset[v] = larger(load(scores + key * row_block + v * lanes, Full{}), offset[v]);
    }
  }
  for (int v = 0; v < vectors; ++v) {
    const std::int64_t at = block.column + v * lanes;
    const Floats before = load(rows.largest + at, Full{});
    store(rows.largest + at, offset[v], Full{});
    offset[v] = offset[v] == -INFINITY ? Floats{} : offset[v];  // every score overflowed
    store(rows.shrink + at, exponential(before - offset[v]), Full{});
  }
  for (std::int64_t key = 0; key < block.keys; ++key) {
    for (int v = 0; v < vectors; ++v) {
      float* const at = scores + key * row_block + v * lanes;
      const Floats power = exponential(load(at, Full{}) - offset[v]);
      sum[v] += power;
      store(at, power, Full{});
    }
  }
  for (int v = 0; v < vectors; ++v) {
    float* const at = rows.sum + block.column + v * lanes;
    store(at, load(at, Full{}) * load(rows.shrink + block.column + v * lanes, Full{}) + sum[v], Full{});
  }
}

inline void forward_block(const HeadView& head, const Block& block, const float* q, float* scores, float* out,
                          Rows& rows) {
  score(head, block, q, scores);
  if (block.columns() == row_block) {
    weigh<row_block / lanes>(block, scores, rows);
  } else {
    weigh<row_block / 2 / lanes>(block, scores, rows);
  }
  out += block.column * head.width;
  for (std::int64_t r = 0; r < block.rows; ++r) {
    const float shrink = rows.shrink[block.column + r];
    if (block.key == 0 || shrink == 1) continue;
    over(head.width, [&](std::int64_t i, auto extent) {
      float* const at = out + r * head.width + i;
      store(at, load(at, extent) * shrink, extent);
    });
  }
  add_to_rows(head, block, scores, head.v, out);
}

template <class Number>
void attend(const HeadView& head, MatmulItem* out, float* log_sums, float* memory) {
  float* const scores = memory;
  float* const q = scores + scratch::score_floats;
  float* const sums = q + row_block * head.width;
  for (std::int64_t first = 0; first < head.positions; first += row_block) {
    const std::int64_t count = least(row_block, head.positions - first);
    Rows rows;
    fill_floats(rows.largest, row_block, -INFINITY);
    fill_floats(rows.sum, row_block, 0);
    fill_floats(sums, count * head.width, 0);
    transpose_rows(count, head.width, head.q + first * head.width, q);
    over_blocks(first, count, [&](const Block& block) { forward_block(head, block, q, scores, sums, rows); });
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
  float *q, *d_out, *d_out_rows;  ///< [width, row_block], twice, and [row_block, width]
  float log_sum[row_block] = {};
  float inner[row_block] = {};  ///< Σ d_out·out of each row
};

inline void backward_block(const HeadView& head, const Block& block, const RowsBack& rows,
                           const HeadGradients& gradients, float* weights, float* d_scores) {
  score(head, block, rows.q, weights);
  multiply_keys(head, block, head.v, rows.d_out, d_scores);
  for (std::int64_t column = 0; column < block.columns(); column += lanes) {
    const Floats log_sum = load(rows.log_sum + block.column + column, Full{});
    const Floats inner = load(rows.inner + block.column + column, Full{});
    for (std::int64_t at = column; at < block.keys * row_block; at += row_block) {
      const Floats weight = exponential(load(weights + at, Full{}) - log_sum);
      store(weights + at, weight, Full{});
      store(d_scores + at, weight * (load(d_scores + at, Full{}) - inner), Full{});
    }
  }
  add_to_rows(head, block, d_scores, head.k, gradients.dq + block.row * head.width);
  add_to_keys(head, block, d_scores, head.q + block.row * head.width, gradients.dk);
  add_to_keys(head, block, weights, rows.d_out_rows + block.column * head.width, gradients.dv);
}

template <class Number>
void take_rows(const HeadView& head, std::int64_t first, std::int64_t count, const MatmulItem* out,
               const float* log_sums, const float* d_out, RowsBack& rows) {
  fill_floats(rows.d_out_rows, count * head.width, 0);
  for (std::int64_t r = 0; r < count; ++r) {
    const std::int64_t at = (first + r) * head.out_stride;
    Floats inner{};
    over(head.head_dim, [&](std::int64_t i, auto extent) {
      const Floats gradient = load(d_out + at + i, extent);
      inner += gradient * Number::load(out, at + i, extent);
      store(rows.d_out_rows + r * head.width + i, gradient, extent);
    });
    rows.inner[r] = sum_of(inner);
    rows.log_sum[r] = log_sums[first + r];
  }
  transpose_rows(count, head.width, head.q + first * head.width, rows.q);
  transpose_rows(count, head.width, rows.d_out_rows, rows.d_out);
}

template <class Number>
void attend_backward(const HeadView& head, const MatmulItem* out, const float* log_sums, const float* d_out,
                     const HeadGradients& gradients, float* memory) {
  float* const weights = memory;
  float* const d_scores = weights + scratch::score_floats;
  float* const of_rows = d_scores + scratch::score_floats;
  const std::int64_t size = row_block * head.width;
  RowsBack rows{.q = of_rows, .d_out = of_rows + size, .d_out_rows = of_rows + 2 * size};
  fill_floats(gradients.dq, head.positions * head.width, 0);
  for (std::int64_t first = 0; first < head.positions; first += row_block) {
    const std::int64_t count = least(row_block, head.positions - first);
    take_rows<Number>(head, first, count, out, log_sums, d_out, rows);
    over_blocks(first, count,
                [&](const Block& block) { backward_block(head, block, rows, gradients, weights, d_scores); });
  }
}

}  // namespace
}  // namespace kolo::models
