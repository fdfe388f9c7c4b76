#pragma once

#include "models/compute/cuda/tile_kernels.h"

// Attention in tiles of 64 rows (queries) and 64 keys (Dao 2023, arXiv:2307.08691), without a matrix of scores in
// memory. `columns` · 16 numbers hold a row of a head. A tile's block passes over the tiles of the other side, and
// keeps its sums in registers. Back, weights are computed again from log_sums: one kernel sums over rows for keys and
// values, another one over keys for queries, so that no two blocks add to the same number.

namespace kolo::models::cuda {

/// What the kernels of attention have in common. q, k, v [sequences, heads or kv_heads, positions, width].
template <int columns>
struct AttentionTiles {
  static constexpr int threads = tile_threads;
  static constexpr int stride = tile_side * columns + 1;       ///< of tiles of rows or keys, in shared memory
  static constexpr Index padded = Index{tile_side} * columns;  ///< numbers of a row
  static constexpr Index of_rows = Index{tile} * stride, of_scores = Index{tile} * tile_stride;

  Index sequences = 0, positions = 0, heads = 0, kv_heads = 0, head_dim = 0, width = 0;
  const float *q = nullptr, *k = nullptr, *v = nullptr;

  constexpr Index tiles() const { return divided_up(positions, tile); }
  constexpr Index head_row(Index sequence, Index head) const { return (sequence * heads + head) * positions; }
  constexpr Index kv_row(Index sequence, Index kv_head) const { return (sequence * kv_heads + kv_head) * positions; }
  constexpr Index kv_of(Index head) const { return head / (heads / kv_heads); }

  /// Rows of `row_stride` numbers, of which `count` exist from tile number `at` on, into shared memory; else 0.
  template <class Team>
  constexpr void load(const Team& team, const float* from, Index row_stride, Index count, Index at, float* to) const {
    each(team, tile * padded, [&](Index i) {
      const Index row = i / padded, column = i % padded, place = at * tile + row;
      to[row * stride + column] = place < positions && column < count ? from[place * row_stride + column] : 0.0f;
    });
  }

  /// Element (i, j) of a thread: Σ over columns of a's row and b's row.
  static constexpr float inner(const float* a, const float* b) {
    float sum = 0;
    for (int column = 0; column < tile_side * columns; ++column) sum = ::fmaf(a[column], b[column], sum);
    return sum;
  }
  /// body(row, key) for the 16 elements of a thread's part of the scores.
  template <class Body>
  static constexpr void each_score(int thread, Body body) {
    for (int i = 0; i < of_thread; ++i) {
      for (int j = 0; j < of_thread; ++j) body(thread / tile_side + i * tile_side, thread % tile_side + j * tile_side);
    }
  }
  /// sums += Σ over t of weight(row, t) · values[t]; of the thread's rows and columns.
  template <class Weight>
  static constexpr void add_products(int thread, float* sums, Weight weight, const float* values) {
    for (int t = 0; t < tile; ++t) {
      for (int i = 0; i < of_thread; ++i) {
        const float factor = weight(thread / tile_side + i * tile_side, t);
        for (int j = 0; j < columns; ++j) {
          float& sum = sums[i * columns + j];
          sum = ::fmaf(factor, values[t * stride + thread % tile_side + j * tile_side], sum);
        }
      }
    }
  }
  /// body(row of the tile, column, sum) for the sums of a thread.
  template <class Body>
  static constexpr void each_sum(int thread, const float* sums, Body body) {
    for (int i = 0; i < of_thread; ++i) {
      for (int j = 0; j < columns; ++j) {
        body(thread / tile_side + i * tile_side, thread % tile_side + j * tile_side, sums[i * columns + j]);
      }
    }
  }
};

/// The largest of what the `parts` threads of a row have found, and of what there was before.
template <int parts>
constexpr float joined(const float* found, int row, float before) {
  for (int part = 0; part < parts; ++part) before = Largest{}(found[row * parts + part], before);
  return before;
}

/// As Compute::attend().
template <int columns>
struct Attend : AttentionTiles<columns> {
  using Base = AttentionTiles<columns>;
  Items out;
  float* log_sums = nullptr;

  constexpr Index blocks() const { return this->sequences * this->heads * this->tiles(); }
  constexpr Index shared_floats() const { return 2 * Base::of_rows + Base::of_scores + 2 * tile_threads + 3 * tile; }

  template <class Team>
  constexpr void operator()(const Team& team, Index block) const {
    constexpr int quarter = tile_threads / tile;  // threads of a row
    float* const rows = team.shared();
    float* const keys = rows + Base::of_rows;  // then values
    float* const scores = keys + Base::of_rows;
    float* const part_largest = scores + Base::of_scores;
    float* const part_sum = part_largest + tile_threads;
    float* const largest = part_sum + tile_threads;
    float* const sum = largest + tile;
    float* const shrink = sum + tile;
    typename Team::template Own<float, of_thread * columns> own;

    const Index at = this->tiles() - 1 - block % this->tiles();  // those with most keys come first
    const Index head = block / this->tiles() % this->heads, sequence = block / this->tiles() / this->heads;
    const Index first = this->head_row(sequence, head), kv = this->kv_row(sequence, this->kv_of(head)) * this->width;
    team.run([&](int thread) {
      for (int i = 0; i < of_thread * columns; ++i) own.of(thread)[i] = 0;
      if (thread >= tile) return;
      largest[thread] = -HUGE_VALF;
      sum[thread] = 0;
    });
    this->load(team, this->q + first * this->width, this->width, this->width, at, rows);
    for (Index key_tile = 0; key_tile <= at; ++key_tile) {
      this->load(team, this->k + kv, this->width, this->width, key_tile, keys);
      team.run([&](int thread) {
        Base::each_score(thread, [&](int row, int key) {
          const bool seen = key_tile * tile + key <= at * tile + row;
          const float score = Base::inner(rows + row * Base::stride, keys + key * Base::stride);
          scores[row * tile_stride + key] = seen ? score : -HUGE_VALF;
        });
      });
      team.run([&](int thread) {
        const int row = thread / quarter;
        float here = -HUGE_VALF;
        for (int key = thread % quarter; key < tile; key += quarter) {
          here = Largest{}(scores[row * tile_stride + key], here);
        }
        part_largest[thread] = here;
      });
      team.run([&](int thread) {
        const int row = thread / quarter;
        const float now = joined<quarter>(part_largest, row, largest[row]);
        float total = 0;
        for (int key = thread % quarter; key < tile; key += quarter) {
          float& score = scores[row * tile_stride + key];
          score = now == -HUGE_VALF ? 0.0f : ::expf(score - now);  // every score may have overflowed
          total += score;
        }
        part_sum[thread] = total;
      });
      team.run([&](int row) {
        if (row >= tile) return;
        const float before = largest[row], now = joined<quarter>(part_largest, row, before);
        shrink[row] = before == -HUGE_VALF ? 0.0f : ::expf(before - now);
        largest[row] = now;
        float total = 0;
        for (int part = 0; part < quarter; ++part) total += part_sum[row * quarter + part];
        sum[row] = sum[row] * shrink[row] + total;
      });
      this->load(team, this->v + kv, this->width, this->width, key_tile, keys);
      team.run([&](int thread) {
        auto& sums = own.of(thread);
        for (int i = 0; i < of_thread; ++i) {
          for (int j = 0; j < columns; ++j) sums[i * columns + j] *= shrink[thread / tile_side + i * tile_side];
        }
        Base::add_products(
            thread, sums, [&](int row, int key) { return scores[row * tile_stride + key]; }, keys);
      });
    }
    team.run([&](int thread) {
      Base::each_sum(thread, own.of(thread), [&](int row, int column, float value) {
        const Index place = at * tile + row;
        if (place >= this->positions || column >= this->head_dim) return;
        const Index of_row = (sequence * this->positions + place) * this->heads + head;
        out.store(of_row * this->head_dim + column, value / sum[row]);
      });
      if (thread < tile && at * tile + thread < this->positions) {
        log_sums[first + at * tile + thread] = largest[thread] + ::logf(sum[thread]);
      }
    });
  }
};

/// inner [sequences, heads, positions] = Σ d_out · out over the columns of a head. A block has the heads of a row.
struct AttendInner : Rowwise<32> {
  Index positions = 0, heads = 0, head_dim = 0;
  Items out;
  const float* d_out = nullptr;
  float* inner = nullptr;

  template <class Team>
  constexpr void operator()(const Team& team, Index row) const {
    each(team, heads, [&](Index head) {
      const Index first = (row * heads + head) * head_dim;
      float sum = 0;
      for (Index i = first; i < first + head_dim; ++i) sum = ::fmaf(d_out[i], out.load(i), sum);
      inner[(row / positions * heads + head) * positions + row % positions] = sum;
    });
  }
};

/// What both kernels of the pass back know.
template <int columns>
struct AttentionBack : AttentionTiles<columns> {
  using Base = AttentionTiles<columns>;
  const float *d_out = nullptr, *log_sums = nullptr, *inner = nullptr;

  constexpr Index shared_floats() const { return 4 * Base::of_rows + 2 * Base::of_scores; }

  /// The shared memory of a block.
  struct Shared {
    float *q, *d_out, *k, *v, *weights, *d_scores;
  };
  template <class Team>
  static constexpr Shared shared(const Team& team) {
    float* const q = team.shared();
    float* const weights = q + 4 * Base::of_rows;
    return {q, q + Base::of_rows, q + 2 * Base::of_rows, q + 3 * Base::of_rows, weights, weights + Base::of_scores};
  }

  template <class Team>
  constexpr void load_keys(const Team& team, const Shared& to, Index kv_row, Index at) const {
    this->load(team, this->k + kv_row * this->width, this->width, this->width, at, to.k);
    this->load(team, this->v + kv_row * this->width, this->width, this->width, at, to.v);
  }
  template <class Team>
  constexpr void load_rows(const Team& team, const Shared& to, Index sequence, Index head, Index at) const {
    this->load(team, this->q + this->head_row(sequence, head) * this->width, this->width, this->width, at, to.q);
    const Index first = (sequence * this->positions * this->heads + head) * this->head_dim;
    this->load(team, d_out + first, this->heads * this->head_dim, this->head_dim, at, to.d_out);
  }
  /// Weights of a tile of rows and one of keys, and the gradients of its scores.
  template <class Team>
  constexpr void scores(const Team& team, const Shared& in, Index head_row, Index row_tile, Index key_tile) const {
    team.run([&](int thread) {
      Base::each_score(thread, [&](int row, int key) {
        const Index place = row_tile * tile + row;
        float weight = 0, d_score = 0;
        if (place < this->positions && key_tile * tile + key <= place) {
          const float score = Base::inner(in.q + row * Base::stride, in.k + key * Base::stride);
          weight = ::expf(score - log_sums[head_row + place]);
          d_score = weight *
                    (Base::inner(in.d_out + row * Base::stride, in.v + key * Base::stride) - inner[head_row + place]);
        }
        in.weights[row * tile_stride + key] = weight;
        in.d_scores[row * tile_stride + key] = d_score;
      });
    });
  }
};

/// dk and dv [sequences, kv_heads, positions, width], of the heads that share them. A block has a tile of keys.
template <int columns>
struct AttendBackwardKeys : AttentionBack<columns> {
  using Base = AttentionTiles<columns>;
  float *dk = nullptr, *dv = nullptr;

  constexpr Index blocks() const { return this->sequences * this->kv_heads * this->tiles(); }

  template <class Team>
  constexpr void operator()(const Team& team, Index block) const {
    typename Team::template Own<float, of_thread * columns> keys, values;
    const auto shared = AttentionBack<columns>::shared(team);
    const Index at = block % this->tiles(), kv_head = block / this->tiles() % this->kv_heads;
    const Index sequence = block / this->tiles() / this->kv_heads, group = this->heads / this->kv_heads;
    const Index kv = this->kv_row(sequence, kv_head);
    team.run([&](int thread) {
      for (int i = 0; i < of_thread * columns; ++i) keys.of(thread)[i] = values.of(thread)[i] = 0;
    });
    this->load_keys(team, shared, kv, at);
    for (Index head = kv_head * group; head < (kv_head + 1) * group; ++head) {
      for (Index row_tile = at; row_tile < this->tiles(); ++row_tile) {
        this->load_rows(team, shared, sequence, head, row_tile);
        this->scores(team, shared, this->head_row(sequence, head), row_tile, at);
        team.run([&](int thread) {
          Base::add_products(
              thread, values.of(thread), [&](int key, int row) { return shared.weights[row * tile_stride + key]; },
              shared.d_out);
          Base::add_products(
              thread, keys.of(thread), [&](int key, int row) { return shared.d_scores[row * tile_stride + key]; },
              shared.q);
        });
      }
    }
    team.run([&](int thread) {
      const auto write = [&](float* to) {
        return [&, to](int key, int column, float value) {
          const Index place = at * tile + key;
          if (place < this->positions && column < this->width) to[(kv + place) * this->width + column] = value;
        };
      };
      Base::each_sum(thread, keys.of(thread), write(dk));
      Base::each_sum(thread, values.of(thread), write(dv));
    });
  }
};

/// dq [sequences, heads, positions, width]. A block has a tile of rows.
template <int columns>
struct AttendBackwardRows : AttentionBack<columns> {
  using Base = AttentionTiles<columns>;
  float* dq = nullptr;

  constexpr Index blocks() const { return this->sequences * this->heads * this->tiles(); }

  template <class Team>
  constexpr void operator()(const Team& team, Index block) const {
    typename Team::template Own<float, of_thread * columns> own;
    const auto shared = AttentionBack<columns>::shared(team);
    const Index at = this->tiles() - 1 - block % this->tiles();
    const Index head = block / this->tiles() % this->heads, sequence = block / this->tiles() / this->heads;
    const Index first = this->head_row(sequence, head);
    team.run([&](int thread) {
      for (int i = 0; i < of_thread * columns; ++i) own.of(thread)[i] = 0;
    });
    this->load_rows(team, shared, sequence, head, at);
    for (Index key_tile = 0; key_tile <= at; ++key_tile) {
      this->load_keys(team, shared, this->kv_row(sequence, this->kv_of(head)), key_tile);
      this->scores(team, shared, first, at, key_tile);
      team.run([&](int thread) {
        Base::add_products(
            thread, own.of(thread), [&](int row, int key) { return shared.d_scores[row * tile_stride + key]; },
            shared.k);
      });
    }
    team.run([&](int thread) {
      Base::each_sum(thread, own.of(thread), [&](int row, int column, float value) {
        const Index place = at * tile + row;
        if (place < this->positions && column < this->width) dq[(first + place) * this->width + column] = value;
      });
    });
  }
};

}  // namespace kolo::models::cuda
