#pragma once

#include "models/compute/cuda/attention_kernels.h"

// Attention of bf16 on tensor cores: as attention_kernels.h, but for how tiles are multiplied. Queries, keys, values
// and gradients are rounded when they come into shared memory, weights and gradients of scores when they are
// multiplied.
//
// The team has 8 warps; Team::Accumulators<n> are n squares of 16 × 16 sums that each warp has. Of a tile of 64 rows
// the warp w has the 16 from 16·(w mod 4) on, and of the columns the half number w / 4.

namespace kolo::models::cuda {

inline constexpr int warp_square = 16, warps_down = tile / warp_square, warps_across = 2;

template <int columns>
struct Bf16Tiles : AttentionTiles<columns> {
  static constexpr int stride = tile_side * columns + 8;      ///< halves of a row of a head, in shared memory
  static constexpr int score_stride = tile + 4;               ///< floats
  static constexpr int weight_stride = tile + 8;              ///< halves
  static constexpr int sum_stride = tile_side * columns + 4;  ///< floats
  static constexpr int squares = columns / warps_across;      ///< of a warp, of rows of heads
  static constexpr int score_squares = tile / warp_square / warps_across;
  static constexpr Index of_rows = Index{tile} * stride / 2, of_scores = Index{tile} * score_stride;  // floats
  static constexpr Index of_weights = Index{tile} * weight_stride / 2;
  static_assert(2 * of_rows >= Index{tile} * sum_stride);  // two tiles make room for sums

  using Halves = std::uint16_t;

  static constexpr Halves* halves(float* memory) { return static_cast<Halves*>(static_cast<void*>(memory)); }
  static constexpr int row_of(int warp) { return warp % warps_down * warp_square; }
  static constexpr int first_of(int warp) { return row_of(warp) * score_stride; }  ///< of its scores
  static constexpr int column_of(int warp, int square, int all) {
    return (warp / warps_down * all + square) * warp_square;
  }

  /// As load(), rounded.
  template <class Team>
  constexpr void load_bf16(const Team& team, const float* from, Index row_stride, Index count, Index at,
                           Halves* to) const {
    each(team, tile * this->padded, [&](Index i) {
      const Index row = i / this->padded, column = i % this->padded, place = at * tile + row;
      const bool there = place < this->positions && column < count;
      to[row * stride + column] = to_bfloat16(there ? from[place * row_stride + column] : 0.0f).bits;
    });
  }
  /// scores = rows · keysᵀ.
  template <class Team>
  static constexpr void multiply_rows(const Team& team, const Halves* rows, const Halves* keys, float* scores) {
    typename Team::template Accumulators<score_squares> sums;
    team.warps([&](int warp) {
      sums.zero(warp);
      for (int square = 0; square < score_squares; ++square) {
        const int key = column_of(warp, square, score_squares);
        for (int i = 0; i < tile_side * columns; i += warp_square) {
          sums.template multiply<false, true>(warp, square, rows + (row_of(warp) * stride + i), stride,
                                              keys + (key * stride + i), stride);
        }
        sums.store(warp, square, scores + (row_of(warp) * score_stride + key), score_stride);
      }
    });
  }
  /// sums += weights · values, or weightsᵀ · values.
  template <bool transposed, class Sums>
  static constexpr void add_weighted(int warp, Sums& sums, const Halves* weights, const Halves* values) {
    for (int square = 0; square < squares; ++square) {
      for (int i = 0; i < tile; i += warp_square) {
        const int row = row_of(warp);
        const Halves* const left = weights + (transposed ? i * weight_stride + row : row * weight_stride + i);
        sums.template multiply<transposed, false>(warp, square, left, weight_stride,
                                                  values + (i * stride + column_of(warp, square, squares)), stride);
      }
    }
  }
  /// Writes the sums of all warps to shared memory, [tile, sum_stride].
  template <class Team, class Sums>
  static constexpr void gather(const Team& team, Sums& sums, float* to) {
    team.warps([&](int warp) {
      for (int square = 0; square < squares; ++square) {
        sums.store(warp, square, to + (row_of(warp) * sum_stride + column_of(warp, square, squares)), sum_stride);
      }
    });
  }
  /// The same, and then their rows to [positions, width] from row `first` on.
  template <class Team, class Sums>
  constexpr void write(const Team& team, Sums& sums, float* shared, Index at, float* to) const {
    gather(team, sums, shared);
    each(team, tile * this->width, [&](Index i) {
      const Index row = i / this->width, column = i % this->width, place = at * tile + row;
      if (place < this->positions) to[place * this->width + column] = shared[row * sum_stride + column];
    });
  }
};

/// As Compute::attend(), of bf16.
template <int columns>
struct AttendBf16 : Bf16Tiles<columns> {
  using Base = Bf16Tiles<columns>;
  Items out;
  float* log_sums = nullptr;

  constexpr Index blocks() const { return this->sequences * this->heads * this->tiles(); }
  constexpr Index shared_floats() const {
    return 3 * Base::of_rows + Base::of_scores + Base::of_weights + 2 * tile_threads + 2 * tile;
  }

  template <class Team>
  constexpr void operator()(const Team& team, Index block) const {
    constexpr int parts = tile_threads / tile;  // threads of a row
    float* const memory = team.shared();        // first, what must be aligned
    auto* const rows = Base::halves(memory);
    auto* const keys = Base::halves(memory + Base::of_rows);
    auto* const values = Base::halves(memory + 2 * Base::of_rows);
    float* const scores = memory + 3 * Base::of_rows;
    auto* const weights = Base::halves(scores + Base::of_scores);
    float* const part_largest = scores + Base::of_scores + Base::of_weights;
    float* const part_sum = part_largest + tile_threads;
    float* const largest = part_sum + tile_threads;
    float* const sum = largest + tile;
    typename Team::template Accumulators<Base::squares> own;

    const Index at = this->tiles() - 1 - block % this->tiles();  // those with most keys come first
    const Index head = block / this->tiles() % this->heads, sequence = block / this->tiles() / this->heads;
    const Index first = this->head_row(sequence, head), kv = this->kv_row(sequence, this->kv_of(head)) * this->width;
    team.warps([&](int warp) { own.zero(warp); });
    each(team, tile, [&](Index row) {
      largest[row] = -HUGE_VALF;
      sum[row] = 0;
    });
    this->load_bf16(team, this->q + first * this->width, this->width, this->width, at, rows);
    for (Index key_tile = 0; key_tile <= at; ++key_tile) {
      this->load_bf16(team, this->k + kv, this->width, this->width, key_tile, keys);
      this->load_bf16(team, this->v + kv, this->width, this->width, key_tile, values);
      Base::multiply_rows(team, rows, keys, scores);
      team.run([&](int thread) {
        const int row = thread / parts;
        float here = -HUGE_VALF;
        for (int key = thread % parts; key < tile; key += parts) {
          float& score = scores[row * Base::score_stride + key];
          if (key_tile * tile + key > at * tile + row) score = -HUGE_VALF;
          here = Largest{}(score, here);
        }
        part_largest[thread] = here;
      });
      team.run([&](int thread) {
        const int row = thread / parts;
        const float now = joined<parts>(part_largest, row, largest[row]);
        float total = 0;
        for (int key = thread % parts; key < tile; key += parts) {
          // Every score may have overflowed.
          const float weight = now == -HUGE_VALF ? 0.0f : ::expf(scores[row * Base::score_stride + key] - now);
          total += weight;
          weights[row * Base::weight_stride + key] = to_bfloat16(weight).bits;
        }
        part_sum[thread] = total;
      });
      team.run([&](int row) {
        if (row >= tile) return;
        const float before = largest[row], now = joined<parts>(part_largest, row, before);
        const float shrink = before == -HUGE_VALF ? 0.0f : ::expf(before - now);
        largest[row] = now;
        float total = 0;
        for (int part = 0; part < parts; ++part) total += part_sum[row * parts + part];
        sum[row] = sum[row] * shrink + total;
        for (int i = 0; i < warp_square; ++i) scores[row * Base::score_stride + i] = shrink;  // the factors of a square
      });
      team.warps([&](int warp) {
        for (int square = 0; square < Base::squares; ++square) {
          own.scale(warp, square, scores + Base::first_of(warp), Base::score_stride);
        }
        Base::template add_weighted<false>(warp, own, weights, values);
      });
    }
    float* const sums = memory + Base::of_rows;  // of keys and values
    Base::gather(team, own, sums);
    each(team, tile * this->head_dim, [&](Index i) {
      const Index row = i / this->head_dim, column = i % this->head_dim, place = at * tile + row;
      if (place >= this->positions) return;
      const Index of_row = (sequence * this->positions + place) * this->heads + head;
      out.store(of_row * this->head_dim + column, sums[row * Base::sum_stride + column] / sum[row]);
      if (column == 0) log_sums[first + place] = largest[row] + ::logf(sum[row]);
    });
  }
};

/// What both kernels of the pass back know.
template <int columns>
struct Bf16Back : Bf16Tiles<columns> {
  using Base = Bf16Tiles<columns>;
  using Halves = typename Base::Halves;
  const float *d_out = nullptr, *log_sums = nullptr, *inner = nullptr;

  constexpr Index shared_floats() const { return 4 * Base::of_rows + 2 * Base::of_scores + 2 * Base::of_weights; }

  /// The shared memory of a block.
  struct Shared {
    Halves *q, *d_out, *k, *v;
    float *scores, *d_outs;  ///< products of q and k, of d_out and v
    Halves *weights, *d_scores;
    float *of_rows, *of_keys;  ///< room for sums, where q and d_out are, and where k and v are
  };
  template <class Team>
  static constexpr Shared shared(const Team& team) {
    float* const rows = team.shared();
    float* const keys = rows + 2 * Base::of_rows;
    float* const scores = keys + 2 * Base::of_rows;
    float* const weights = scores + 2 * Base::of_scores;
    return {Base::halves(rows),
            Base::halves(rows + Base::of_rows),
            Base::halves(keys),
            Base::halves(keys + Base::of_rows),
            scores,
            scores + Base::of_scores,
            Base::halves(weights),
            Base::halves(weights + Base::of_weights),
            rows,
            keys};
  }

  template <class Team>
  constexpr void load_keys(const Team& team, const Shared& to, Index kv_row, Index at) const {
    this->load_bf16(team, this->k + kv_row * this->width, this->width, this->width, at, to.k);
    this->load_bf16(team, this->v + kv_row * this->width, this->width, this->width, at, to.v);
  }
  template <class Team>
  constexpr void load_rows(const Team& team, const Shared& to, Index sequence, Index head, Index at) const {
    this->load_bf16(team, this->q + this->head_row(sequence, head) * this->width, this->width, this->width, at, to.q);
    const Index first = (sequence * this->positions * this->heads + head) * this->head_dim;
    this->load_bf16(team, d_out + first, this->heads * this->head_dim, this->head_dim, at, to.d_out);
  }
  /// Weights of a tile of rows and one of keys, and the gradients of its scores.
  template <class Team>
  constexpr void scores(const Team& team, const Shared& in, Index head_row, Index row_tile, Index key_tile) const {
    Base::multiply_rows(team, in.q, in.k, in.scores);
    Base::multiply_rows(team, in.d_out, in.v, in.d_outs);
    each(team, tile * tile, [&](Index i) {
      const Index row = i / tile, key = i % tile, place = row_tile * tile + row;
      float weight = 0, d_score = 0;
      if (place < this->positions && key_tile * tile + key <= place) {
        weight = ::expf(in.scores[row * Base::score_stride + key] - log_sums[head_row + place]);
        d_score = weight * (in.d_outs[row * Base::score_stride + key] - inner[head_row + place]);
      }
      in.weights[row * Base::weight_stride + key] = to_bfloat16(weight).bits;
      in.d_scores[row * Base::weight_stride + key] = to_bfloat16(d_score).bits;
    });
  }
};

/// As AttendBackwardKeys.
template <int columns>
struct AttendBf16BackwardKeys : Bf16Back<columns> {
  using Base = Bf16Tiles<columns>;
  float *dk = nullptr, *dv = nullptr;

  constexpr Index blocks() const { return this->sequences * this->kv_heads * this->tiles(); }

  template <class Team>
  constexpr void operator()(const Team& team, Index block) const {
    typename Team::template Accumulators<Base::squares> keys, values;
    const auto shared = Bf16Back<columns>::shared(team);
    const Index at = block % this->tiles(), kv_head = block / this->tiles() % this->kv_heads;
    const Index sequence = block / this->tiles() / this->kv_heads, group = this->heads / this->kv_heads;
    const Index kv = this->kv_row(sequence, kv_head);
    team.warps([&](int warp) {
      keys.zero(warp);
      values.zero(warp);
    });
    this->load_keys(team, shared, kv, at);
    for (Index head = kv_head * group; head < (kv_head + 1) * group; ++head) {
      for (Index row_tile = at; row_tile < this->tiles(); ++row_tile) {
        this->load_rows(team, shared, sequence, head, row_tile);
        this->scores(team, shared, this->head_row(sequence, head), row_tile, at);
        team.warps([&](int warp) {
          Base::template add_weighted<true>(warp, values, shared.weights, shared.d_out);
          Base::template add_weighted<true>(warp, keys, shared.d_scores, shared.q);
        });
      }
    }
    this->write(team, keys, shared.of_rows, at, dk + kv * this->width);
    this->write(team, values, shared.of_rows, at, dv + kv * this->width);
  }
};

/// As AttendBackwardRows.
template <int columns>
struct AttendBf16BackwardRows : Bf16Back<columns> {
  using Base = Bf16Tiles<columns>;
  float* dq = nullptr;

  constexpr Index blocks() const { return this->sequences * this->heads * this->tiles(); }

  template <class Team>
  constexpr void operator()(const Team& team, Index block) const {
    typename Team::template Accumulators<Base::squares> own;
    const auto shared = Bf16Back<columns>::shared(team);
    const Index at = this->tiles() - 1 - block % this->tiles();
    const Index head = block / this->tiles() % this->heads, sequence = block / this->tiles() / this->heads;
    const Index first = this->head_row(sequence, head);
    team.warps([&](int warp) { own.zero(warp); });
    this->load_rows(team, shared, sequence, head, at);
    for (Index key_tile = 0; key_tile <= at; ++key_tile) {
      this->load_keys(team, shared, this->kv_row(sequence, this->kv_of(head)), key_tile);
      this->scores(team, shared, first, at, key_tile);
      team.warps([&](int warp) { Base::template add_weighted<false>(warp, own, shared.d_scores, shared.k); });
    }
    this->write(team, own, shared.of_keys, at, dq + first * this->width);
  }
};

}  // namespace kolo::models::cuda
