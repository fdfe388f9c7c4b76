#pragma once

#include "models/compute/cuda/attention_kernels.h"

// Attention of bf16 on tensor cores: as attention_kernels.h, but that a warp has 16 rows, and keeps scores and sums in
// registers (Dao 2023, arXiv:2307.08691, section 3.3). Tiles of the other side come into shared memory while those
// before are multiplied. Weights and gradients of scores are rounded when they are multiplied.

namespace kolo::models::cuda {

inline constexpr int warp_rows = 16;
inline constexpr float log2_of_e = 1.44269504f;

/// e^x over the power of two of a base.
struct ExpOver {
  constexpr float operator()(float x, float base) const { return ::exp2f(::fmaf(x, log2_of_e, -base)); }
};

struct alignas(4) HalfPair {
  Half first, second;
};
/// Two neighbours, rounded, to an even place.
constexpr void store_pair(Half* to, float first, float second) {
  *static_cast<HalfPair*>(static_cast<void*>(to)) = {to_bfloat16(first).bits, to_bfloat16(second).bits};
}

/// q, k, v [sequences, heads or kv_heads, positions, width], each row 16 bytes aligned.
template <int columns, int warps>
struct Bf16Attention {
  static constexpr int threads = 32 * warps;
  static constexpr int block_rows = warp_rows * warps;
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
  /// Fetches `count` rows of one head from row `first` on.
  template <class Team>
  constexpr void fetch(const Team& team, const Half* of_head, Index first, int count, Half* to) const {
    constexpr int pieces = 2 * columns;  // of 16 bytes
    team.run([&](int thread) {
      for (int i = thread; i < count * pieces; i += threads) {
        const int row = i / pieces, at = i % pieces * 8;
        const bool there = first + row < positions && at < width;
        team.fetch(to + (row * stride + at), of_head + (there ? (first + row) * width + at : 0), there);
      }
    });
  }
};

/// As Compute::attend(), of bf16.
template <int columns>
struct AttendBf16 : Bf16Attention<columns, 8> {
  using Base = Bf16Attention<columns, 8>;
  static constexpr int together = columns <= 4 ? 2 : 1;  ///< blocks on a multiprocessor
  Half* out = nullptr;
  float* log_sums = nullptr;

  constexpr Index blocks() const { return this->sequences * this->heads * this->block_tiles(); }
  constexpr Index shared_floats() const { return (Index{Base::block_rows} * Base::stride + 4 * Base::tile_halves) / 2; }

  template <class Team>
  constexpr void operator()(const Team& team, Index block) const {
    const Index all = this->sequences * this->heads;
    const Index head = block % all, at = this->block_tiles() - 1 - block / all;  // those with most keys come first
    const Half* const of_k = this->k + this->first_row(this->kv_of(head)) * this->width;
    const Half* const of_v = this->v + this->first_row(this->kv_of(head)) * this->width;
    Half* const queries = Base::halves(team);
    Half* const keys = queries + Base::block_rows * Base::stride;  // two tiles each
    Half* const values = keys + 2 * Base::tile_halves;
    typename Team::template Left<columns> q;
    typename Team::template Sums<2 * columns> sums;
    typename Team::RowNumbers largest, total;

    const Index first = at * Base::block_rows;
    const Index key_tiles = least(this->tiles(), divided_up(first + Base::block_rows, tile));
    this->fetch(team, this->q + this->first_row(head) * this->width, first, Base::block_rows, queries);
    this->fetch(team, of_k, 0, tile, keys);
    this->fetch(team, of_v, 0, tile, values);
    team.end_fetch();
    for (Index key_tile = 0; key_tile < key_tiles; ++key_tile) {
      const Index buffer = key_tile % 2 * Base::tile_halves, other = Base::tile_halves - buffer;
      if (key_tile + 1 < key_tiles) {
        this->fetch(team, of_k, (key_tile + 1) * tile, tile, keys + other);
        this->fetch(team, of_v, (key_tile + 1) * tile, tile, values + other);
      }
      team.end_fetch();
      team.template await_fetched<1>();
      team.warps([&](int warp) {
        const Index row = first + Base::row_of(warp), key = key_tile * tile;
        if (key_tile == 0) {
          q.load(warp, queries + Base::row_of(warp) * Base::stride, Base::stride);
          sums.fill(warp, 0);
          total.fill(warp, 0);
          largest.fill(warp, -HUGE_VALF);
        }
        if (key >= row + warp_rows) return;
        typename Team::template Sums<tile / 8> scores;
        scores.fill(warp, 0);
        scores.template multiply<false>(warp, q, keys + buffer, Base::stride);
        if (key + tile > row) {
          const int ahead = static_cast<int>(key - row);
          scores.change(warp, [&](float x, int i, int j) { return ahead + j <= i ? x : -HUGE_VALF; });
        }
        typename Team::RowNumbers now = largest, base, part;
        scores.gather(warp, now, Largest{});
        base.change(warp, now,
                    [](float, float x) { return x == -HUGE_VALF ? 0.0f : x * log2_of_e; });  // all overflowed
        largest.change(warp, base, ExpOver{});  // now that by which the sums shrink
        scores.change_rows(warp, base, ExpOver{});
        part.fill(warp, 0);
        scores.gather(warp, part, Sum{});
        total.change(warp, largest, [](float x, float shrink) { return x * shrink; });
        total.change(warp, part, Sum{});
        sums.change_rows(warp, largest, [](float x, float shrink) { return x * shrink; });
        typename Team::template Left<tile / 16> weights;
        weights.round(warp, scores);
        sums.template multiply<true>(warp, weights, values + buffer, Base::stride);
        largest = now;
      });
    }
    team.warps([&](int warp) {
      const Index row = first + Base::row_of(warp);
      sums.change_rows(warp, total, [](float x, float of_row) { return x / of_row; });
      sums.read(warp, [&](int i, int column, float x, float next) {
        if (row + i >= this->positions || column >= this->head_dim) return;
        const Index of_row = (head / this->heads * this->positions + row + i) * this->heads + head % this->heads;
        store_pair(out + of_row * this->head_dim + column, x, next);
      });
      largest.change(warp, total, [](float x, float of_row) { return x + ::logf(of_row); });
      largest.read(warp, [&](int i, float x) {
        if (row + i < this->positions) log_sums[this->first_row(head) + row + i] = x;
      });
    });
  }
};

/// For the pass back: Σ out·d_out of each row of a head, and d_out as q is, [sequences, heads, positions, width]. A
/// block has a row of all heads.
struct AttendBf16Inner : Rowwise<128> {
  Index positions = 0, heads = 0, head_dim = 0, width = 0;
  const Half *out = nullptr, *d_out = nullptr;
  float* inner = nullptr;
  Half* d_heads = nullptr;

  template <class Team>
  constexpr void operator()(const Team& team, Index row) const {
    constexpr int lanes = 8;  // of a head
    const int of_row = static_cast<int>(heads * lanes);
    float* const parts = team.shared();
    const Index from = row * heads * head_dim, to = row / positions * heads * positions + row % positions;
    team.run([&](int thread) {
      for (int i = thread; i < of_row; i += threads) {
        const Index head = i / lanes;
        const Half* const a = out + from + head * head_dim;
        const Half* const b = d_out + from + head * head_dim;
        Half* const copy = d_heads + (to + head * positions) * width;
        float sum = 0;
        for (int column = i % lanes; column < width; column += lanes) {
          copy[column] = column < head_dim ? b[column] : Half{0};
          if (column < head_dim) sum = ::fmaf(to_float(BFloat16{a[column]}), to_float(BFloat16{b[column]}), sum);
        }
        parts[i] = sum;
      }
    });
    each(team, heads, [&](Index head) {
      float sum = 0;
      for (int lane = 0; lane < lanes; ++lane) sum += parts[head * lanes + lane];
      inner[to + head * positions] = sum;
    });
  }
  constexpr Index shared_floats() const { return 8 * heads; }
};

/// What both kernels of the pass back know. Of the tile's other side a warp takes half at a time.
template <int columns>
struct Bf16Back : Bf16Attention<columns, tile / warp_rows> {
  using Base = Bf16Attention<columns, tile / warp_rows>;
  static constexpr int half = tile / 2;
  static constexpr int together = columns <= 4 ? 3 : 2;
  const Half* d_out = nullptr;  ///< as q
  const float *log_sums = nullptr, *inner = nullptr;

  /// Rows [positions, width] of one head, f32.
  template <class Sums>
  constexpr void write(int warp, const Sums& sums, Index row, float* to) const {
    sums.read(warp, [&](int i, int column, float x, float next) {
      if (row + i >= this->positions || column >= this->width) return;
      float* const at = to + (row + i) * this->width + column;
      at[0] = x;
      at[1] = next;
    });
  }
};

/// As AttendBackwardKeys. A block has 64 keys, and passes over the rows of all heads that share them.
template <int columns>
struct AttendBf16BackwardKeys : Bf16Back<columns> {
  using Base = Bf16Back<columns>;
  float *dk = nullptr, *dv = nullptr;

  constexpr Index blocks() const { return this->sequences * this->kv_heads * this->tiles(); }
  constexpr Index shared_floats() const { return Index{6} * Base::tile_halves / 2 + 4 * tile; }

  template <class Team>
  constexpr void operator()(const Team& team, Index block) const {
    const Index all = this->sequences * this->kv_heads, kv_head = block % all, at = block / all;
    const Index group = this->heads / this->kv_heads, first_head = kv_head * group;
    Half* const keys = Base::halves(team);
    Half* const values = keys + Base::tile_halves;
    Half* const queries = values + Base::tile_halves;  // two tiles each
    Half* const gradients = queries + 2 * Base::tile_halves;
    float* const log_bases = team.shared() + 6 * Base::tile_halves / 2;  // of two tiles
    float* const inners = log_bases + Index{2} * tile;
    typename Team::template Left<columns> k, v;
    typename Team::template Sums<2 * columns> k_sums, v_sums;

    const Index key_tile = at * tile, row_tiles = this->tiles() - at;
    const auto fetch_rows = [&](Index number, Index buffer) {
      const Index head = first_head + number / row_tiles, row = (at + number % row_tiles) * tile;
      const Index of_head = this->first_row(head);
      this->fetch(team, this->q + of_head * this->width, row, tile, queries + buffer * Base::tile_halves);
      this->fetch(team, this->d_out + of_head * this->width, row, tile, gradients + buffer * Base::tile_halves);
      team.run([&](int thread) {
        if (thread >= tile) return;
        const bool there = row + thread < this->positions;
        // Rows that are not there have no weight.
        log_bases[buffer * tile + thread] = there ? this->log_sums[of_head + row + thread] * log2_of_e : HUGE_VALF;
        inners[buffer * tile + thread] = there ? this->inner[of_head + row + thread] : 0.0f;
      });
    };
    const Index first_kv = this->first_row(kv_head) * this->width;
    this->fetch(team, this->k + first_kv, key_tile, tile, keys);
    this->fetch(team, this->v + first_kv, key_tile, tile, values);
    fetch_rows(0, 0);
    team.end_fetch();
    for (Index number = 0; number < group * row_tiles; ++number) {
      const Index buffer = number % 2;
      if (number + 1 < group * row_tiles) fetch_rows(number + 1, 1 - buffer);
      team.end_fetch();
      team.template await_fetched<1>();
      team.warps([&](int warp) {
        const Index key = key_tile + Base::row_of(warp);
        if (number == 0) {
          k.load(warp, keys + Base::row_of(warp) * Base::stride, Base::stride);
          v.load(warp, values + Base::row_of(warp) * Base::stride, Base::stride);
          k_sums.fill(warp, 0);
          v_sums.fill(warp, 0);
        }
        for (int part = 0; part < tile; part += Base::half) {
          const Index row = (at + number % row_tiles) * tile + part;
          if (row + Base::half <= key) continue;
          const Half* const q = queries + buffer * Base::tile_halves + part * Base::stride;
          const Half* const d = gradients + buffer * Base::tile_halves + part * Base::stride;
          const float* const bases = log_bases + buffer * tile + part;
          const float* const of_rows = inners + buffer * tile + part;
          const int ahead = static_cast<int>(row - key);
          typename Team::template Sums<Base::half / 8> weights, d_weights;  // keys × rows
          typename Team::template Left<Base::half / 16> rounded;
          weights.fill(warp, 0);
          weights.template multiply<false>(warp, k, q, Base::stride);
          weights.change(warp, [&](float x, int i, int j) { return ahead + j >= i ? ExpOver{}(x, bases[j]) : 0.0f; });
          d_weights.fill(warp, 0);
          d_weights.template multiply<false>(warp, v, d, Base::stride);
          rounded.round(warp, weights);
          v_sums.template multiply<true>(warp, rounded, d, Base::stride);
          weights.join(warp, d_weights, [&](float weight, float x, int, int j) { return weight * (x - of_rows[j]); });
          rounded.round(warp, weights);
          k_sums.template multiply<true>(warp, rounded, q, Base::stride);
        }
      });
    }
    team.warps([&](int warp) {
      this->write(warp, k_sums, key_tile + Base::row_of(warp), dk + first_kv);
      this->write(warp, v_sums, key_tile + Base::row_of(warp), dv + first_kv);
    });
  }
};

/// As AttendBackwardRows.
template <int columns>
struct AttendBf16BackwardRows : Bf16Back<columns> {
  using Base = Bf16Back<columns>;
  float* dq = nullptr;

  constexpr Index blocks() const { return this->sequences * this->heads * this->tiles(); }
  constexpr Index shared_floats() const { return Index{6} * Base::tile_halves / 2; }

  template <class Team>
  constexpr void operator()(const Team& team, Index block) const {
    const Index all = this->sequences * this->heads;
    const Index head = block % all, at = this->tiles() - 1 - block / all;
    const Index of_head = this->first_row(head), of_kv = this->first_row(this->kv_of(head)) * this->width;
    Half* const queries = Base::halves(team);
    Half* const gradients = queries + Base::tile_halves;
    Half* const keys = gradients + Base::tile_halves;  // two tiles each
    Half* const values = keys + 2 * Base::tile_halves;
    typename Team::template Left<columns> q, d;
    typename Team::template Sums<2 * columns> sums;
    typename Team::RowNumbers bases, inners;

    const auto fetch_keys = [&](Index key_tile, Index buffer) {
      this->fetch(team, this->k + of_kv, key_tile * tile, tile, keys + buffer * Base::tile_halves);
      this->fetch(team, this->v + of_kv, key_tile * tile, tile, values + buffer * Base::tile_halves);
    };
    this->fetch(team, this->q + of_head * this->width, at * tile, tile, queries);
    this->fetch(team, this->d_out + of_head * this->width, at * tile, tile, gradients);
    fetch_keys(0, 0);
    team.end_fetch();
    for (Index key_tile = 0; key_tile <= at; ++key_tile) {
      const Index buffer = key_tile % 2;
      if (key_tile < at) fetch_keys(key_tile + 1, 1 - buffer);
      team.end_fetch();
      team.template await_fetched<1>();
      team.warps([&](int warp) {
        const Index row = at * tile + Base::row_of(warp);
        if (key_tile == 0) {
          q.load(warp, queries + Base::row_of(warp) * Base::stride, Base::stride);
          d.load(warp, gradients + Base::row_of(warp) * Base::stride, Base::stride);
          sums.fill(warp, 0);
          const auto of_row = [&](const float* numbers, float otherwise) {
            return [=, this](int i) { return row + i < this->positions ? numbers[of_head + row + i] : otherwise; };
          };
          bases.set(warp, of_row(this->log_sums, HUGE_VALF));
          inners.set(warp, of_row(this->inner, 0));
          bases.change(warp, [](float x) { return x * log2_of_e; });
        }
        for (int part = 0; part < tile; part += Base::half) {
          const Index key = key_tile * tile + part;
          if (key >= row + warp_rows) continue;
          const Index begin = buffer * Base::tile_halves + part * Base::stride;
          typename Team::template Sums<Base::half / 8> weights, d_weights;
          typename Team::template Left<Base::half / 16> rounded;
          weights.fill(warp, 0);
          weights.template multiply<false>(warp, q, keys + begin, Base::stride);
          weights.change_rows(warp, bases, ExpOver{});
          d_weights.fill(warp, 0);
          d_weights.template multiply<false>(warp, d, values + begin, Base::stride);
          weights.join_rows(warp, inners, d_weights,
                            [](float weight, float x, float of_row) { return weight * (x - of_row); });
          if (key + Base::half > row) {
            const int ahead = static_cast<int>(key - row);
            weights.change(warp, [&](float x, int i, int j) { return ahead + j <= i ? x : 0.0f; });
          }
          rounded.round(warp, weights);
          sums.template multiply<true>(warp, rounded, keys + begin, Base::stride);
        }
      });
    }
    team.warps([&](int warp) { this->write(warp, sums, at * tile + Base::row_of(warp), dq + of_head * this->width); });
  }
};

}  // namespace kolo::models::cuda
