#pragma once

#include "models/compute/cuda/attention_kernels.h"

// Attention of bf16 on tensor cores: as attention_kernels.h, but that a warp keeps the scores and sums of its rows in
// registers (Dao 2023, arXiv:2307.08691, section 3.3). Tiles of the other side come into shared memory while those
// before are multiplied. Weights and gradients of scores are rounded when they are multiplied.

namespace kolo::models::cuda {

/// e^x over the power of two of a base.
template <class Team>
struct ExpOver {
  constexpr float operator()(float x, float base) const { return Team::exp2(::fmaf(x, log2_of_e, -base)); }
};

struct alignas(4) HalfPair {
  Half first, second;
};
/// Two neighbours, rounded, to an even place.
template <class Team>
constexpr void store_pair(const Team& team, Half* to, float first, float second) {
  *static_cast<HalfPair*>(static_cast<void*>(to)) = __builtin_bit_cast(HalfPair, team.halves(first, second));
}

/// q, k, v [sequences, heads or kv_heads, positions, width], each row 16 bytes aligned. A warp has `sixteens` times 16
/// rows of its side.
template <int columns, int warps, int sixteens>
struct Bf16Attention {
  static constexpr int threads = 32 * warps;
  static constexpr int warp_rows = 16 * sixteens, block_rows = warp_rows * warps;
  static constexpr int stride = tile_side * columns + 8;  ///< of a row in shared memory: no two of eight in a bank
  static constexpr Index tile_halves = Index{tile} * stride;

  Index sequences = 0, positions = 0, heads = 0, kv_heads = 0, head_dim = 0, width = 0;
  const Half *q = nullptr, *k = nullptr, *v = nullptr;

  /// The first of a warp's rows in its block.
  static constexpr Index row_of(int warp) { return Index{warp_rows} * warp; }
  constexpr Index block_tiles() const { return divided_up(positions, block_rows); }
  constexpr Index tiles() const { return divided_up(positions, tile); }
  /// The first row of one of all heads.
  constexpr Index first_row(Index head) const { return head * positions; }
  /// The keys and values of one of all heads.
  constexpr Index kv_of(Index head) const { return head / heads * kv_heads + head % heads / (heads / kv_heads); }

  template <class Team>
  static constexpr Half* halves(const Team& team) {
    return static_cast<Half*>(static_cast<void*>(team.shared()));
  }
  /// Passes over the tiles of the keys that rows of a block from `first` on see, in two buffers; fetch(0) has begun.
  /// pass.operator()<masked>(tile): only where it is masked are there keys that one of the rows does not see.
  template <class Team, class Fetch, class Pass>
  constexpr void over_keys(const Team& team, Index first, Fetch fetch, Pass pass) const {
    const Index all = least(tiles(), divided_up(first + block_rows, tile)), unmasked = first / tile;
    for (Index at = 0; at < all; ++at) {
      team.template await_fetched<0>();
      if (at + 1 < all) fetch(at + 1);
      if (at < unmasked)
        pass.template operator()<false>(at);
      else
        pass.template operator()<true>(at);
    }
  }
  /// Begins to fetch `count` rows of one head from row `first` on.
  template <int count, class Team>
  constexpr void fetch(const Team& team, const Half* of_head, Index first, Half* to) const {
    constexpr int pieces = 2 * columns, at_once = threads / pieces;  // of 16 bytes, and rows
    team.start([&](int thread) {
      const int row = thread / pieces, at = thread % pieces * 8;
      const Half* const from = of_head + (first + row) * width + at;
      Half* const place = to + (row * stride + at);
      const int left = at < width ? static_cast<int>(least(count, positions - first - row)) : 0;
      for (int i = 0; i < count; i += at_once) {
        const bool there = i < left;
        team.fetch(place + Index{i} * stride, there ? from + i * width : of_head, there);
      }
    });
  }
};

/// As Compute::attend(), of bf16.
template <int columns>
struct AttendBf16 : Bf16Attention<columns, 4, 1> {
  using Base = Bf16Attention<columns, 4, 1>;
  static constexpr int together = columns <= 4 ? 4 : 2;  ///< blocks on a multiprocessor
  Half* out = nullptr;
  float* log_sums = nullptr;

  constexpr Index blocks() const { return this->sequences * this->heads * this->block_tiles(); }
  constexpr Index shared_floats() const { return (Index{Base::block_rows} * Base::stride + 4 * Base::tile_halves) / 2; }

  template <class Team>
  constexpr void operator()(const Team& team, Index block) const {
    using Warp = typename Team::template Warp<Base::warp_rows / 16>;
    const Index all = this->sequences * this->heads;
    const Index head = block % all, at = this->block_tiles() - 1 - block / all;  // those with most keys come first
    const Half* const of_k = this->k + this->first_row(this->kv_of(head)) * this->width;
    const Half* const of_v = this->v + this->first_row(this->kv_of(head)) * this->width;
    Half* const queries = Base::halves(team);
    Half* const keys = queries + Base::block_rows * Base::stride;  // two tiles each
    Half* const values = keys + 2 * Base::tile_halves;
    typename Warp::template Left<columns> q;
    typename Warp::template Sums<2 * columns> sums;
    typename Warp::RowNumbers largest, total;

    const Index first = at * Base::block_rows;
    const auto fetch_keys = [&](Index key_tile) {
      const Index buffer = key_tile % 2 * Base::tile_halves;
      this->template fetch<tile>(team, of_k, key_tile * tile, keys + buffer);
      this->template fetch<tile>(team, of_v, key_tile * tile, values + buffer);
      team.end_fetch();
    };
    this->template fetch<Base::block_rows>(team, this->q + this->first_row(head) * this->width, first, queries);
    fetch_keys(0);
    team.template await_fetched<0>();
    team.warps([&](int warp) {
      q.load(warp, queries + Base::row_of(warp) * Base::stride, Base::stride);
      sums.fill(warp, 0);
      total.fill(warp, 0);
      largest.fill(warp, -HUGE_VALF);
    });
    const auto pass = [&]<bool masked>(Index key_tile) {
      const Index buffer = key_tile % 2 * Base::tile_halves;
      team.warps([&](int warp) {
        const Index row = first + Base::row_of(warp), key = key_tile * tile;
        if (masked && key >= row + Base::warp_rows) return;
        typename Warp::template Sums<tile / 8> scores;
        scores.fill(warp, 0);
        scores.template multiply<false>(warp, q, keys + buffer, Base::stride);
        if constexpr (masked) {
          const int ahead = static_cast<int>(key - row);
          scores.change(warp, [&](float x, int i, int j) { return ahead + j <= i ? x : -HUGE_VALF; });
        }
        typename Warp::RowNumbers now = largest, base, part;
        scores.gather(warp, now, Largest{});
        base.change(warp, now,
                    [](float, float x) { return x == -HUGE_VALF ? 0.0f : x * log2_of_e; });  // all overflowed
        largest.change(warp, base, ExpOver<Team>{});  // now that by which the sums shrink
        scores.change_rows(warp, base, ExpOver<Team>{});
        part.fill(warp, 0);
        scores.gather(warp, part, Sum{});
        total.change(warp, largest, [](float x, float shrink) { return x * shrink; });
        total.change(warp, part, Sum{});
        sums.change_rows(warp, largest, [](float x, float shrink) { return x * shrink; });
        typename Warp::template Left<tile / 16> weights;
        weights.round(warp, scores);
        sums.template multiply<true>(warp, weights, values + buffer, Base::stride);
        largest = now;
      });
    };
    this->over_keys(team, first, fetch_keys, pass);
    team.warps([&](int warp) {
      const Index row = first + Base::row_of(warp);
      sums.change_rows(warp, total, [](float x, float of_row) { return x / of_row; });
      sums.read(warp, [&](int i, int column, float x, float next) {
        if (row + i >= this->positions || column >= this->head_dim) return;
        const Index of_row = (head / this->heads * this->positions + row + i) * this->heads + head % this->heads;
        store_pair(team, out + of_row * this->head_dim + column, x, next);
      });
      largest.change(warp, total, [](float x, float of_row) { return x + ::logf(of_row); });
      largest.read(warp, [&](int i, float x) {
        if (row + i < this->positions) log_sums[this->first_row(head) + row + i] = x;
      });
    });
  }
};

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
    for (Index column = lane * n; column < width; column += lanes * n) {
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
    const auto fetch_keys = [&](Index key_tile) {
      const Index buffer = key_tile % 2 * Base::tile_halves;
      this->template fetch<tile>(team, this->k + of_kv, key_tile * tile, keys + buffer);
      this->template fetch<tile>(team, this->v + of_kv, key_tile * tile, values + buffer);
      team.end_fetch();
    };
    this->template fetch<Base::block_rows>(team, this->q + of_head * this->width, first, queries);
    this->template fetch<Base::block_rows>(team, this->d_out + of_head * this->width, first, gradients);
    fetch_keys(0);
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
    this->over_keys(team, first, fetch_keys, pass);
    team.warps(
        [&](int warp) { this->write(team, warp, sums, first + Base::row_of(warp), dq + of_head * this->width); });
  }
};

}  // namespace kolo::models::cuda
