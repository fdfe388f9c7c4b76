#pragma once

#include "models/compute/cuda/attention_bf16_kernels.h"

// The pass back of attention of bf16: weights are computed again from log_sums.

namespace kolo::models::cuda {

/// For the pass back: Σ out·d_out of each row of a head, and d_out as q is, [sequences, heads, positions, width]. A
/// block has a row of all heads, and eight lanes of it a head.
struct AttendBf16Inner : Rowwise<128> {
  static constexpr int lanes = 8;
  Index positions = 0, heads = 0, head_dim = 0, width = 0;
  const Half *out = nullptr, *d_out = nullptr;
  float* inner = nullptr;
  Half* d_heads = nullptr;
  bool eights = false;

  constexpr Index shared_floats() const { return lanes * heads; }

  template <class Team>
  constexpr void operator()(const Team& team, Index row) const {
    float* const parts = team.shared();
    const Index from = row * heads * head_dim;
    const Index to = static_cast<int>(row) / static_cast<int>(positions) * heads * positions +
                     static_cast<int>(row) % static_cast<int>(positions);
    each(team, heads * lanes, [&](Index i) {
      const Index head = i / lanes, copy = (to + head * positions) * width;
      const int lane = static_cast<int>(i % lanes);
      parts[i] = eights ? part_of<8>(team, from + head * head_dim, copy, lane)
                        : part_of<1>(team, from + head * head_dim, copy, lane);
    });
    each(team, heads, [&](Index head) {
      float sum = 0;
      for (int lane = 0; lane < lanes; ++lane) sum += parts[head * lanes + lane];
      inner[to + head * positions] = sum;
    });
  }

 private:
  static constexpr Items items(const Half* data) { return {const_cast<Half*>(data), DType::bf16}; }
  /// A lane's part of a head's sum, and of its copy.
  template <int n, class Team>
  constexpr float part_of(const Team& team, Index first, Index copy, int lane) const {
    float sum = 0;
    for (Index column = Index{n} * lane; column < width; column += Index{n} * lanes) {
      Numbers<n> gradients{};
      if (column < head_dim) {
        const Numbers<n> outs = items(out).load<n>(first + column);
        gradients = items(d_out).load<n>(first + column);
        for (int j = 0; j < n; ++j) sum = ::fmaf(outs.of[j], gradients.of[j], sum);
      }
      items(d_heads).store(team, copy + column, gradients);
    }
    return sum;
  }
};

/// What both kernels of the pass back know. Of the tile's other side a warp takes half at a time.
template <int columns, int sixteens>
struct Bf16Back : Bf16Attention<columns, 4, sixteens> {
  using Base = Bf16Attention<columns, 4, sixteens>;
  static constexpr int half = tile / 2;
  static constexpr int together = sixteens == 1 && columns <= 4 ? 3 : 2;
  const Half* d_out = nullptr;  ///< as q
  const float *log_sums = nullptr, *inner = nullptr;

  /// Rows [positions, width] of one head.
  template <class Team, class Sums>
  constexpr void write(const Team& team, int warp, const Sums& sums, Index row, Half* to) const {
    sums.read(warp, [&](int i, int column, float x, float next) {
      if (row + i >= this->positions || column >= this->width) return;
      store_pair(team, to + (row + i) * this->width + column, x, next);
    });
  }
};

/// As AttendBackwardKeys. A block has some keys, and passes over the rows of all heads that share them.
template <int columns>
struct AttendBf16BackwardKeys : Bf16Back<columns, 1> {
  using Base = Bf16Back<columns, 1>;
  Half *dk = nullptr, *dv = nullptr;

  constexpr Index blocks() const { return this->sequences * this->kv_heads * this->block_tiles(); }
  constexpr Index shared_floats() const {
    return (Index{2} * Base::block_rows * Base::stride + 4 * Base::tile_halves) / 2 + 4 * tile;
  }

  template <class Team>
  constexpr void operator()(const Team& team, Index block) const {
    using Warp = typename Team::template Warp<1>;
    const Index all = this->sequences * this->kv_heads, kv_head = block % all, at = block / all;
    const Index group = this->heads / this->kv_heads, first_head = kv_head * group;
    Half* const keys = Base::halves(team);
    Half* const values = keys + Base::block_rows * Base::stride;
    Half* const queries = values + Base::block_rows * Base::stride;  // two tiles each
    Half* const gradients = queries + 2 * Base::tile_halves;
    float* const log_bases = team.shared() + Base::block_rows * Base::stride + 2 * Base::tile_halves;  // of two tiles
    float* const inners = log_bases + Index{2} * tile;
    typename Warp::template Left<columns> k, v;
    typename Warp::template Sums<2 * columns> k_sums, v_sums;

    const Index first = at * Base::block_rows, row_tiles = this->tiles() - first / tile;
    const auto fetch_rows = [&](Index head, Index row, Index buffer) {
      const Index of_head = this->first_row(head);
      this->template fetch<tile>(team, this->q + of_head * this->width, row, queries + buffer * Base::tile_halves);
      this->template fetch<tile>(team, this->d_out + of_head * this->width, row,
                                 gradients + buffer * Base::tile_halves);
      team.start([&](int thread) {
        if (thread >= tile) return;
        const bool there = row + thread < this->positions;
        // Rows that are not there have no weight.
        log_bases[buffer * tile + thread] = there ? this->log_sums[of_head + row + thread] * log2_of_e : HUGE_VALF;
        inners[buffer * tile + thread] = there ? this->inner[of_head + row + thread] : 0.0f;
      });
      team.end_fetch();
    };
    const Index first_kv = this->first_row(kv_head) * this->width;
    this->template fetch<Base::block_rows>(team, this->k + first_kv, first, keys);
    this->template fetch<Base::block_rows>(team, this->v + first_kv, first, values);
    fetch_rows(first_head, first, 0);
    team.template await_fetched<0>();
    team.warps([&](int warp) {
      k.load(warp, keys + Base::row_of(warp) * Base::stride, Base::stride);
      v.load(warp, values + Base::row_of(warp) * Base::stride, Base::stride);
      k_sums.fill(warp, 0);
      v_sums.fill(warp, 0);
    });
    const auto pass = [&]<bool masked>(Index row_tile, Index buffer) {
      team.warps([&](int warp) {
        const Index key = first + Base::row_of(warp);
        for (int part = 0; part < tile; part += Base::half) {
          const Index row = first + row_tile * tile + part;
          if (masked && row + Base::half <= key) continue;
          const Half* const q = queries + buffer * Base::tile_halves + part * Base::stride;
          const Half* const d = gradients + buffer * Base::tile_halves + part * Base::stride;
          const float* const bases = log_bases + buffer * tile + part;
          const float* const of_rows = inners + buffer * tile + part;
          typename Warp::template Sums<Base::half / 8> weights, d_weights;  // keys × rows
          typename Warp::template Left<Base::half / 16> rounded;
          weights.fill(warp, 0);
          weights.template multiply<false>(warp, k, q, Base::stride);
          weights.change(warp, [&](float x, int, int j) { return ExpOver<Team>{}(x, bases[j]); });
          if constexpr (masked) {
            const int ahead = static_cast<int>(row - key);
            weights.change(warp, [&](float x, int i, int j) { return ahead + j >= i ? x : 0.0f; });
          }
          d_weights.fill(warp, 0);
          d_weights.template multiply<false>(warp, v, d, Base::stride);
          rounded.round(warp, weights);
          v_sums.template multiply<true>(warp, rounded, d, Base::stride);
          weights.join(warp, d_weights, [&](float weight, float x, int, int j) { return weight * (x - of_rows[j]); });
          rounded.round(warp, weights);
          k_sums.template multiply<true>(warp, rounded, q, Base::stride);
        }
      });
    };
    Index buffer = 0;
    for (Index head = first_head; head < first_head + group; ++head) {
      for (Index row_tile = 0; row_tile < row_tiles; ++row_tile, buffer = 1 - buffer) {
        team.template await_fetched<0>();
        if (row_tile + 1 < row_tiles)
          fetch_rows(head, first + (row_tile + 1) * tile, 1 - buffer);
        else if (head + 1 < first_head + group)
          fetch_rows(head + 1, first, 1 - buffer);
        if (row_tile < Base::block_rows / tile)
          pass.template operator()<true>(row_tile, buffer);
        else
          pass.template operator()<false>(row_tile, buffer);
      }
    }
    team.warps([&](int warp) {
      this->write(team, warp, k_sums, first + Base::row_of(warp), dk + first_kv);
      this->write(team, warp, v_sums, first + Base::row_of(warp), dv + first_kv);
    });
  }
};

/// As AttendBackwardRows.
template <int columns>
struct AttendBf16BackwardRows : Bf16Back<columns, columns <= 4 ? 2 : 1> {
  using Base = Bf16Back<columns, columns <= 4 ? 2 : 1>;
  Half* dq = nullptr;

  constexpr Index blocks() const { return this->sequences * this->heads * this->block_tiles(); }
  constexpr Index shared_floats() const {
    return (Index{2} * Base::block_rows * Base::stride + 4 * Base::tile_halves) / 2;
  }

  template <class Team>
  constexpr void operator()(const Team& team, Index block) const {
    using Warp = typename Team::template Warp<Base::warp_rows / 16>;
    const Index all = this->sequences * this->heads;
    const Index head = block % all, at = this->block_tiles() - 1 - block / all;
    const Index of_head = this->first_row(head), of_kv = this->first_row(this->kv_of(head)) * this->width;
    Half* const queries = Base::halves(team);
    Half* const gradients = queries + Base::block_rows * Base::stride;
    Half* const keys = gradients + Base::block_rows * Base::stride;  // two tiles each
    Half* const values = keys + 2 * Base::tile_halves;
    typename Warp::template Left<columns> q, d;
    typename Warp::template Sums<2 * columns> sums;
    typename Warp::RowNumbers bases, inners;

    const Index first = at * Base::block_rows;
    this->template fetch<Base::block_rows>(team, this->q + of_head * this->width, first, queries);
    this->template fetch<Base::block_rows>(team, this->d_out + of_head * this->width, first, gradients);
    this->fetch_keys(team, of_kv, 0, keys);
    team.template await_fetched<0>();
    team.warps([&](int warp) {
      const Index row = first + Base::row_of(warp);
      q.load(warp, queries + Base::row_of(warp) * Base::stride, Base::stride);
      d.load(warp, gradients + Base::row_of(warp) * Base::stride, Base::stride);
      sums.fill(warp, 0);
      const auto of_row = [&](const float* numbers, float otherwise) {
        return [=, this](int i) { return row + i < this->positions ? numbers[of_head + row + i] : otherwise; };
      };
      bases.set(warp, of_row(this->log_sums, HUGE_VALF));
      inners.set(warp, of_row(this->inner, 0));
      bases.change(warp, [](float x) { return x * log2_of_e; });
    });
    const auto pass = [&]<bool masked>(Index key_tile) {
      const Index buffer = key_tile % 2 * Base::tile_halves;
      team.warps([&](int warp) {
        const Index row = first + Base::row_of(warp);
        for (int part = 0; part < tile; part += Base::half) {
          const Index key = key_tile * tile + part;
          if (masked && key >= row + Base::warp_rows) continue;
          const Index begin = buffer + part * Base::stride;
          typename Warp::template Sums<Base::half / 8> weights, d_weights;
          typename Warp::template Left<Base::half / 16> rounded;
          weights.fill(warp, 0);
          weights.template multiply<false>(warp, q, keys + begin, Base::stride);
          weights.change_rows(warp, bases, ExpOver<Team>{});
          d_weights.fill(warp, 0);
          d_weights.template multiply<false>(warp, d, values + begin, Base::stride);
          weights.join_rows(warp, inners, d_weights,
                            [](float weight, float x, float of_row) { return weight * (x - of_row); });
          if constexpr (masked) {
            const int ahead = static_cast<int>(key - row);
            weights.change(warp, [&](float x, int i, int j) { return ahead + j <= i ? x : 0.0f; });
          }
          rounded.round(warp, weights);
          sums.template multiply<true>(warp, rounded, keys + begin, Base::stride);
        }
      });
    };
    this->over_keys(team, first, of_kv, keys, pass);
    team.warps(
        [&](int warp) { this->write(team, warp, sums, first + Base::row_of(warp), dq + of_head * this->width); });
  }
};

}  // namespace kolo::models::cuda
