#pragma once

#include "models/compute/cuda/team.h"

namespace kolo::models::cuda {

/// Rows of a norm, f32 but for what `more` and `dh`, `h` and `d_items` are.
struct NormRows : Rowwise<128> {
  Index dim = 0;
  Items x, gain;
  float* inverse = nullptr;
  bool eights = false;

 protected:
  /// The sum over a row of value(i), which has n numbers from column i on.
  template <int n, class Team, class Value>
  constexpr float sum_of(const Team& team, Value value) const {
    return team.template reduce<float>(
        [&](int thread) {
          float all = 0;
          for (Index i = Index{n} * thread; i < dim; i += Index{n} * threads) {
            const Numbers<n> here = value(i);
            for (int j = 0; j < n; ++j) all += here.of[j];
          }
          return all;
        },
        Sum{});
  }
  template <int n, class Team, class Body>
  constexpr void over(const Team& team, Body body) const {
    team.run([&](int thread) {
      for (Index i = Index{n} * thread; i < dim; i += Index{n} * threads) body(i);
    });
  }
};

/// As Compute::rms_norm().
struct RmsNorm : NormRows {
  Items more, sum;
  double eps = 0;
  Items h;

  template <class Team>
  constexpr void operator()(const Team& team, Index row) const {
    eights ? of_row<8>(team, row) : of_row<1>(team, row);
  }

 private:
  template <int n, class Team>
  constexpr void of_row(const Team& team, Index row) const {
    const Index at = row * dim;
    const float squares = sum_of<n>(team, [&](Index i) {
      Numbers<n> values = x.load<n>(at + i);
      if (more.data != nullptr) {
        const Numbers<n> added = more.load<n>(at + i);
        for (int j = 0; j < n; ++j) values.of[j] += added.of[j];
        sum.store(team, at + i, values);
      }
      for (int j = 0; j < n; ++j) values.of[j] *= values.of[j];
      return values;
    });
    const auto scale = static_cast<float>(1 / ::sqrt(static_cast<double>(squares) / static_cast<double>(dim) + eps));
    const Items& from = more.data != nullptr ? sum : x;
    over<n>(team, [&](Index i) {
      Numbers<n> values = from.load<n>(at + i);
      const Numbers<n> gains = gain.load<n>(i);
      for (int j = 0; j < n; ++j) values.of[j] = values.of[j] * scale * gains.of[j];
      h.store(team, at + i, values);
      if (i == 0) inverse[row] = scale;
    });
  }
};

/// As Compute::rms_norm_backward(). A block has a chunk of rows, of which it sums the gradient of the gain; then
/// SumParts.
struct RmsNormBackward : NormRows {
  static constexpr int together = 8;
  Items dh, d, d_items;
  float* parts = nullptr;  ///< [blocks, dim]

  constexpr Index of_block() const { return most(8, divided_up(rows, 1024)); }
  constexpr Index blocks() const { return divided_up(rows, of_block()); }
  constexpr Index shared_floats() const { return dim; }

  template <class Team>
  constexpr void operator()(const Team& team, Index block) const {
    const Index first = block * of_block(), end = least(rows, first + of_block());
    for (Index row = first; row < end; ++row) {
      eights ? of_row<8>(team, row, row == first) : of_row<1>(team, row, row == first);
    }
    const float* const sums = team.shared();
    each(team, dim, [&](Index i) {
      parts[block * dim + i] = sums[eights ? place_of<8>(i - i % 8, static_cast<int>(i % 8)) : place_of<1>(i, 0)];
    });
  }

 private:
  /// Where the sum of column i + j of n is: threads, which have columns of their own, come to different banks.
  template <int n>
  constexpr Index place_of(Index i, int j) const {
    return j * (dim / n) + i / n;
  }
  template <int n, class Team>
  constexpr void of_row(const Team& team, Index row, bool first) const {
    const Index at = row * dim;
    const float products = sum_of<n>(team, [&](Index i) {
      Numbers<n> values = dh.load<n>(at + i);
      const Numbers<n> gains = gain.load<n>(i), xs = x.load<n>(at + i);
      for (int j = 0; j < n; ++j) values.of[j] = values.of[j] * gains.of[j] * xs.of[j];
      return values;
    });
    const float scale = inverse[row], pull = scale * scale * scale * products / static_cast<float>(dim);
    float* const sums = team.shared();
    over<n>(team, [&](Index i) {
      Numbers<n> total = d.load<n>(at + i);
      const Numbers<n> dhs = dh.load<n>(at + i), gains = gain.load<n>(i), xs = x.load<n>(at + i);
      for (int j = 0; j < n; ++j) {
        total.of[j] = total.of[j] + dhs.of[j] * gains.of[j] * scale - xs.of[j] * pull;
        const float part = dhs.of[j] * (xs.of[j] * scale);
        float& sum = sums[place_of<n>(i, j)];
        sum = first ? part : sum + part;
      }
      d.store(team, at + i, total);
      if (d_items.data != nullptr) d_items.store(team, at + i, total);
    });
  }
};

/// The heads of rows [sequences, positions, (heads + 2·kv_heads)·head_dim] and of tensors [sequences, heads, positions,
/// width]. A block has some rows.
struct HeadRows {
  static constexpr int threads = 128;
  static constexpr Index of_block = 4;
  Index rows = 0;
  int positions = 0, heads = 0, kv_heads = 0, head_dim = 0, width = 0;
  Items cosine, sine;  ///< [positions, head_dim / 2]
  float scale = 1;     ///< of queries
  Items q, k, v;
  bool eights = false;

  constexpr Index blocks() const { return divided_up(rows, of_block); }
  constexpr Index shared_floats() const { return 0; }

  constexpr int all() const { return heads + 2 * kv_heads; }
  /// The row of one head, counted through queries, keys and values.
  struct Row {
    Items in;
    Index first;
  };
  constexpr Row row_of(Index row, int head) const {
    const auto sequence = static_cast<int>(row) / positions, position = static_cast<int>(row) % positions;
    if (head < heads) return {q, (Index{sequence * heads + head} * positions + position) * width};
    const int of = head - heads;
    return {of < kv_heads ? k : v, (Index{sequence * kv_heads + of % kv_heads} * positions + position) * width};
  }
  /// body.operator()<n>(row, head, i) for numbers i to i+n-1 of the first half of each of a block's rows.
  template <class Team, class Body>
  constexpr void over(const Team& team, Index block, Body body) const {
    eights ? over<8>(team, block, body) : over<1>(team, block, body);
  }
  /// Numbers i and half a row on, turned by the angle of the position, or by its opposite.
  template <int n, class Team>
  constexpr void turn(const Team& team, Index row, int head, int i, float direction, const Row& from,
                      const Row& to) const {
    const int half = head_dim / 2;
    Numbers<n> a = from.in.load<n>(from.first + i), b = from.in.load<n>(from.first + half + i);
    if (head < heads + kv_heads) {
      const Index angle = Index{static_cast<int>(row) % positions} * half + i;
      const Numbers<n> cosines = cosine.load<n>(angle), sines = sine.load<n>(angle);
      const float factor = head < heads ? scale : 1.0f;
      for (int j = 0; j < n; ++j) {
        const float x = a.of[j], y = b.of[j], c = cosines.of[j], s = sines.of[j] * direction;
        a.of[j] = (x * c - y * s) * factor;
        b.of[j] = (y * c + x * s) * factor;
      }
    }
    to.in.store(team, to.first + i, a);
    to.in.store(team, to.first + half + i, b);
  }

 private:
  template <int n, class Team, class Body>
  constexpr void over(const Team& team, Index block, Body body) const {
    const int of_head = head_dim / 2 / n, of_row = all() * of_head;
    const Index first = block * of_block;
    const int here = static_cast<int>(least(of_block, rows - first)) * of_row;
    team.run([&](int thread) {
      for (int at = thread; at < here; at += threads) {
        const int in_row = at % of_row;
        body.template operator()<n>(first + at / of_row, in_row / of_head, in_row % of_head * n);
      }
    });
  }
};

/// As Compute::split_heads().
struct SplitHeads : HeadRows {
  Items rows_of_all;

  template <class Team>
  constexpr void operator()(const Team& team, Index block) const {
    over(team, block, [&]<int n>(Index row, int head, int i) {
      const Row to = row_of(row, head);
      turn<n>(team, row, head, i, 1, {rows_of_all, (row * all() + head) * head_dim}, to);
      if (i == 0) {
        for (int rest = head_dim; rest < width; ++rest) to.in.store(to.first + rest, 0);
      }
    });
  }
};

/// The way back of gradients of heads: rows of all, rounded.
struct MergeHeads : HeadRows {
  Items rows_of_all;

  template <class Team>
  constexpr void operator()(const Team& team, Index block) const {
    over(team, block, [&]<int n>(Index row, int head, int i) {
      turn<n>(team, row, head, i, -1, row_of(row, head), {rows_of_all, (row * all() + head) * head_dim});
    });
  }
};

template <class Team>
constexpr float sigmoid(const Team& team, float x) {
  return team.reciprocal(1 + exponential(team, -x));
}

/// Gates and what they let through, [rows, 2·width], in which a block has a row.
struct GatedRows : Rowwise<128> {
  Items gate_up;
  int width = 0;
  bool eights = false;

  /// body.operator()<n>(i, place of gate i) for n numbers from i on, counted through all rows.
  template <class Team, class Body>
  constexpr void over(const Team& team, Index row, Body body) const {
    eights ? over<8>(team, row, body) : over<1>(team, row, body);
  }

 private:
  template <int n, class Team, class Body>
  constexpr void over(const Team& team, Index row, Body body) const {
    team.run([&](int thread) {
      for (int i = thread * n; i < width; i += threads * n) {
        body.template operator()<n>(row * width + i, row * 2 * width + i);
      }
    });
  }
};

/// As Compute::swiglu().
struct Swiglu : GatedRows {
  Items s;

  template <class Team>
  constexpr void operator()(const Team& team, Index row) const {
    over(team, row, [&]<int n>(Index i, Index at) {
      const Numbers<n> gate = gate_up.load<n>(at), up = gate_up.load<n>(at + width);
      Numbers<n> result;
      for (int j = 0; j < n; ++j) result.of[j] = gate.of[j] * sigmoid(team, gate.of[j]) * up.of[j];
      s.store(team, i, result);
    });
  }
};

/// As Compute::swiglu_backward().
struct SwigluBackward : GatedRows {
  Items ds, d_gate_up, s;

  template <class Team>
  constexpr void operator()(const Team& team, Index row) const {
    over(team, row, [&]<int n>(Index i, Index at) {
      const Numbers<n> gate = gate_up.load<n>(at), up = gate_up.load<n>(at + width), gradient = ds.load<n>(i);
      Numbers<n> d_gate, d_up, result;
      for (int j = 0; j < n; ++j) {
        const float soft = sigmoid(team, gate.of[j]), silu = gate.of[j] * soft;
        d_gate.of[j] = gradient.of[j] * up.of[j] * (soft + silu * (1 - soft));
        d_up.of[j] = gradient.of[j] * silu;
        result.of[j] = silu * up.of[j];
      }
      d_gate_up.store(team, at, d_gate);
      d_gate_up.store(team, at + width, d_up);
      if (s.data != nullptr) s.store(team, i, result);
    });
  }
};

/// As Compute::cross_entropy(), of one row; what is summed over rows goes to results [3, rows]. So few blocks that the
/// rows under way stay in the cache between the two times they are read.
struct CrossEntropy : Rowwise<512> {
  static constexpr int together = 3;
  Items logits;
  const std::int32_t* targets = nullptr;
  int classes = 0;
  float scale = 1;
  Items d_logits;
  double* results = nullptr;
  bool eights = false;

  template <class Team>
  constexpr void operator()(const Team& team, Index row) const {
    eights ? of_row<8>(team, row) : of_row<1>(team, row);
  }

 private:
  /// body(i) for every n-th of the classes.
  template <int n, class Team, class Body>
  constexpr void over_classes(const Team& team, Body body) const {
    team.run([&](int thread) {
      for (int i = thread * n; i < classes; i += threads * n) body(thread, i);
    });
  }

  template <int n, class Team>
  constexpr void of_row(const Team& team, Index row) const {
    const Index first = row * classes;
    const int target = targets[row];
    if (target < 0) {
      if (d_logits.data != nullptr) {
        over_classes<n>(team, [&](int, int i) { d_logits.store(team, first + i, Numbers<n>{}); });
      }
      each(team, 3, [&](Index i) { results[i * rows + row] = 0; });
      return;
    }
    // The largest logit of each thread, where it is first, and the sum of exponentials over the largest.
    typename Team::template Own<float, 2> own;
    typename Team::template Own<int, 1> places;
    team.run([&](int thread) {
      own.of(thread)[0] = -HUGE_VALF;
      own.of(thread)[1] = 0;
      places.of(thread)[0] = classes;
    });
    over_classes<n>(team, [&](int thread, int i) {
      auto& [largest, sum] = own.of(thread);
      const Numbers<n> x = logits.load<n>(first + i);
      float here = x.of[0];
      for (int j = 1; j < n; ++j) here = Largest{}(here, x.of[j]);
      if (here > largest) {
        sum *= exponential(team, largest - base_of(here));
        largest = here;
        int place = n - 1;
        for (int j = n - 1; j >= 0; --j) place = x.of[j] == here ? j : place;
        places.of(thread)[0] = i + place;
      }
      const float base = base_of(largest);
      for (int j = 0; j < n; ++j) sum += exponential(team, x.of[j] - base);
    });
    const float hit = logits.load(first + target);
    const auto largest = team.template reduce<float>([&](int thread) { return own.of(thread)[0]; }, Largest{});
    const float base = base_of(largest);
    const auto total = team.template reduce<float>(
        [&](int thread) { return own.of(thread)[1] * exponential(team, base_of(own.of(thread)[0]) - base); }, Sum{});
    const auto place = team.template reduce<int>(
        [&](int thread) { return own.of(thread)[0] == largest ? places.of(thread)[0] : classes; }, Least{});
    if (d_logits.data != nullptr) {
      const float factor = scale / total;
      over_classes<n>(team, [&](int, int i) {
        Numbers<n> x = logits.load<n>(first + i);
        for (int j = 0; j < n; ++j) x.of[j] = exponential(team, x.of[j] - base) * factor;
        if (target >= i && target < i + n) {
          for (int j = 0; j < n; ++j) x.of[j] -= i + j == target ? scale : 0.0f;
        }
        d_logits.store(team, first + i, x);
      });
    }
    each(team, 1, [&](Index) {
      results[row] = ::log(static_cast<double>(total)) - (static_cast<double>(hit) - static_cast<double>(base));
      results[rows + row] = (place == classes ? 0 : place) == target ? 1 : 0;
      results[2 * rows + row] = 1;
    });
  }
  /// What exponents are over: the largest, or 0 where there is no number yet.
  static constexpr float base_of(float largest) { return largest == -HUGE_VALF ? 0.0f : largest; }
};

/// to[row] += the sum of a row, f64 [rows, count].
struct SumRows : Rowwise<256> {
  const double* from = nullptr;
  Index count = 0;
  double* to = nullptr;

  template <class Team>
  constexpr void operator()(const Team& team, Index row) const {
    const auto total = sum<double>(team, count, [&](Index i) { return from[row * count + i]; });
    each(team, 1, [&](Index) { to[row] += total; });
  }
};

}  // namespace kolo::models::cuda
