#pragma once

#include "models/compute/cuda/team.h"

namespace kolo::models::cuda {

/// x [rows, dim] = the rows of a table that tokens name.
struct Embed : Rowwise<128> {
  const float* table = nullptr;
  const std::int32_t* tokens = nullptr;
  Index dim = 0;
  float* x = nullptr;

  template <class Team>
  constexpr void operator()(const Team& team, Index row) const {
    const float* const from = table + tokens[row] * dim;
    each(team, dim, [&](Index i) { x[row * dim + i] = from[i]; });
  }
};

/// Tokens and their places as numbers that sort by token, then by place; behind them the largest, up to a power of two.
struct MakeKeys : Elementwise {
  const std::int32_t* tokens = nullptr;
  Index tokens_count = 0;
  std::uint64_t* keys = nullptr;  ///< [count]

  template <class Team>
  constexpr void operator()(const Team& team, Index block) const {
    over(team, block, [&](Index i) {
      keys[i] = i < tokens_count ? static_cast<std::uint64_t>(tokens[i]) << 32 | static_cast<std::uint64_t>(i)
                                 : ~std::uint64_t{0};
    });
  }
};

/// Of a bitonic sort (Batcher 1968): the pair number `pair` of a step over runs of `size` keys.
constexpr void order_pair(std::uint64_t* keys, Index place, Index size, Index step, Index pair) {
  const Index low = pair / step * 2 * step + pair % step;
  const std::uint64_t a = keys[low], b = keys[low + step];
  const bool rising = ((place + low) & size) == 0;
  if ((a > b) != rising) return;
  keys[low] = b;
  keys[low + step] = a;
}

/// One step of the sort; `count` is that of the pairs.
struct SortStep : Elementwise {
  std::uint64_t* keys = nullptr;
  Index size = 0, step = 0;

  template <class Team>
  constexpr void operator()(const Team& team, Index block) const {
    over(team, block, [&](Index pair) { order_pair(keys, 0, size, step, pair); });
  }
};

/// All steps within pieces, for runs of first_size up to last_size keys.
struct SortPieces {
  static constexpr int threads = 256;
  static constexpr Index piece = 1024;
  std::uint64_t* keys = nullptr;
  Index count = 0;  ///< a power of two
  Index first_size = 0, last_size = 0;

  constexpr Index length() const { return least(piece, count); }
  constexpr Index blocks() const { return count / length(); }
  constexpr Index shared_floats() const { return 2 * piece; }

  template <class Team>
  constexpr void operator()(const Team& team, Index block) const {
    auto* const here = static_cast<std::uint64_t*>(static_cast<void*>(team.shared()));
    const Index first = block * length();
    each(team, length(), [&](Index i) { here[i] = keys[first + i]; });
    for (Index size = first_size; size <= last_size; size *= 2) {
      for (Index step = least(size, length()) / 2; step > 0; step /= 2) {
        each(team, length() / 2, [&](Index pair) { order_pair(here, first, size, step, pair); });
      }
    }
    each(team, length(), [&](Index i) { keys[first + i] = here[i]; });
  }
};

/// d_table += the rows of d by their tokens, in the order of the rows. The blocks of a token's first key, each of some
/// columns, have that token.
struct EmbedBackward {
  static constexpr int threads = 256;
  static constexpr int ahead = 8;       ///< rows that are read before they are added
  Index count = 0;                      ///< of keys
  const std::uint64_t* keys = nullptr;  ///< sorted
  const float* d = nullptr;
  Index dim = 0;
  float* d_table = nullptr;

  constexpr Index blocks() const { return count * divided_up(dim, threads); }
  constexpr Index shared_floats() const { return 0; }

  template <class Team>
  constexpr void operator()(const Team& team, Index block) const {
    const Index at = block % count;
    const std::uint64_t token = keys[at] >> 32;
    if (at > 0 && keys[at - 1] >> 32 == token) return;
    team.run([&](int thread) {
      const Index i = block / count * threads + thread;
      if (i >= dim) return;
      float* const to = d_table + static_cast<Index>(token) * dim + i;
      float sum = *to;
      for (Index key = at; key < count && keys[key] >> 32 == token; key += ahead) {
        float values[ahead];
        bool there[ahead];
        for (int j = 0; j < ahead; ++j) {
          there[j] = key + j < count && keys[key + j] >> 32 == token;
          values[j] = there[j] ? d[static_cast<Index>(keys[key + j] & 0xffffffff) * dim + i] : 0.0f;
        }
        for (int j = 0; j < ahead; ++j) sum = there[j] ? sum + values[j] : sum;
      }
      *to = sum;
    });
  }
};

/// As Compute::rms_norm().
struct RmsNorm : Rowwise<128> {
  const float *x = nullptr, *more = nullptr, *gain = nullptr;
  float *sum = nullptr, *inverse = nullptr;
  Index dim = 0;
  double eps = 0;
  Items h;

  template <class Team>
  constexpr void operator()(const Team& team, Index row) const {
    const Index at = row * dim;
    const auto squares = cuda::sum<float>(team, dim, [&](Index i) {
      float value = x[at + i];
      if (more != nullptr) sum[at + i] = value += more[at + i];
      return value * value;
    });
    const auto scale = static_cast<float>(1 / ::sqrt(static_cast<double>(squares) / static_cast<double>(dim) + eps));
    const float* const from = more != nullptr ? sum : x;
    each(team, dim, [&](Index i) {
      h.store(at + i, from[at + i] * scale * gain[i]);
      if (i == 0) inverse[row] = scale;
    });
  }
};

/// As Compute::rms_norm_backward(), but for the gain.
struct RmsNormBackward : Rowwise<128> {
  const float *x = nullptr, *gain = nullptr, *inverse = nullptr, *dh = nullptr;
  float* d = nullptr;
  Index dim = 0;
  Items d_items;

  template <class Team>
  constexpr void operator()(const Team& team, Index row) const {
    const Index at = row * dim;
    const auto products = sum<float>(team, dim, [&](Index i) { return dh[at + i] * gain[i] * x[at + i]; });
    const float scale = inverse[row], pull = scale * scale * scale * products / static_cast<float>(dim);
    each(team, dim, [&](Index i) {
      const float total = d[at + i] + dh[at + i] * gain[i] * scale - x[at + i] * pull;
      d[at + i] = total;
      if (d_items.data != nullptr) d_items.store(at + i, total);
    });
  }
};

/// The heads of rows [sequences, positions, (heads + 2·kv_heads)·head_dim] and of tensors [sequences, heads, positions,
/// width]. A block has a row.
struct HeadRows : Rowwise<128> {
  Index positions = 0;
  int heads = 0, kv_heads = 0, head_dim = 0, width = 0;
  const float *cosine = nullptr, *sine = nullptr;  ///< [positions, head_dim / 2]
  float scale = 1;                                 ///< of queries
  Items q, k, v;

  constexpr int all() const { return heads + 2 * kv_heads; }
  /// Where the row of one head, counted through queries, keys and values, is.
  struct Place {
    Items in;
    Index first;
  };
  constexpr Place place_of(Index row, int head) const {
    const Index sequence = row / positions, position = row % positions;
    if (head < heads) return {q, ((sequence * heads + head) * positions + position) * width};
    const int of = head - heads;
    return {of < kv_heads ? k : v, ((sequence * kv_heads + of % kv_heads) * positions + position) * width};
  }
  /// Element i of a row of one head, rotated by the angle of its position, or by its opposite.
  constexpr float rotated(Index row, int head, int i, float direction, const Place& from) const {
    if (head >= heads + kv_heads) return from.in.load(from.first + i);
    const int half = head_dim / 2, pair = i < half ? i : i - half;
    const Index at = row % positions * half + pair;
    const float a = from.in.load(from.first + pair), b = from.in.load(from.first + half + pair);
    const float s = sine[at] * direction;
    const float turned = i < half ? a * cosine[at] - b * s : b * cosine[at] + a * s;
    return head < heads ? turned * scale : turned;
  }
};

/// As Compute::split_heads().
struct SplitHeads : HeadRows {
  Items rows_of_all;

  template <class Team>
  constexpr void operator()(const Team& team, Index row) const {
    team.run([&](int thread) {
      for (int at = thread; at < all() * width; at += threads) {
        const int head = at / width, i = at % width;
        const Place to = place_of(row, head);
        const Place from{rows_of_all, (row * all() + head) * head_dim};
        to.in.store(to.first + i, i < head_dim ? rotated(row, head, i, 1, from) : 0.0f);
      }
    });
  }
};

/// The way back of gradients of heads: rows of all, rounded.
struct MergeHeads : HeadRows {
  Items rows_of_all;

  template <class Team>
  constexpr void operator()(const Team& team, Index row) const {
    team.run([&](int thread) {
      for (int at = thread; at < all() * head_dim; at += threads) {
        const int head = at / head_dim;
        rows_of_all.store(row * all() * head_dim + at, rotated(row, head, at % head_dim, -1, place_of(row, head)));
      }
    });
  }
};

template <class T>
constexpr T sigmoid(T x) {
  return 1.0f / (1.0f + ::expf(-x));
}

/// As Compute::swiglu(); `count` is that of s.
struct Swiglu : Elementwise {
  Items gate_up;
  Index width = 0;
  Items s;
  bool eights = false;

  template <class Team>
  constexpr void operator()(const Team& team, Index block) const {
    over(team, block, eights, [&]<int n>(Index i) {
      const Index at = i / width * 2 * width + i % width;
      const Numbers<n> gate = gate_up.load<n>(at), up = gate_up.load<n>(at + width);
      Numbers<n> result;
      for (int j = 0; j < n; ++j) result.of[j] = gate.of[j] * sigmoid(gate.of[j]) * up.of[j];
      s.store(i, result);
    });
  }
};

struct SwigluBackward : Elementwise {
  Items gate_up, ds;
  Index width = 0;
  Items d_gate_up, s;
  bool eights = false;

  template <class Team>
  constexpr void operator()(const Team& team, Index block) const {
    over(team, block, eights, [&]<int n>(Index i) {
      const Index at = i / width * 2 * width + i % width;
      const Numbers<n> gate = gate_up.load<n>(at), up = gate_up.load<n>(at + width), gradient = ds.load<n>(i);
      Numbers<n> d_gate, d_up, result;
      for (int j = 0; j < n; ++j) {
        const float soft = sigmoid(gate.of[j]), silu = gate.of[j] * soft;
        d_gate.of[j] = gradient.of[j] * up.of[j] * (soft + silu * (1 - soft));
        d_up.of[j] = gradient.of[j] * silu;
        result.of[j] = silu * up.of[j];
      }
      d_gate_up.store(at, d_gate);
      d_gate_up.store(at + width, d_up);
      s.store(i, result);
    });
  }
};

/// As Compute::cross_entropy(), of one row; what is summed over rows goes to results [3, rows]. So many threads that
/// the rows under way stay in the cache between the two times they are read.
struct CrossEntropy : Rowwise<1024> {
  Items logits;
  const std::int32_t* targets = nullptr;
  int classes = 0;
  float scale = 1;
  Items d_logits;
  double* results = nullptr;
  bool eights = false;

  template <class Team>
  constexpr void operator()(const Team& team, Index row) const {
    if (eights)
      of_row<8>(team, row);
    else
      of_row<1>(team, row);
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
        over_classes<n>(team, [&](int, int i) { d_logits.store(first + i, Numbers<n>{}); });
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
      float here = largest;
      int place = places.of(thread)[0];
      for (int j = 0; j < n; ++j) {
        if (x.of[j] > here) {
          here = x.of[j];
          place = i + j;
        }
      }
      const float base = base_of(here);
      float more = 0;
      for (int j = 0; j < n; ++j) more += ::expf(x.of[j] - base);
      sum = sum * ::expf(largest - base) + more;
      largest = here;
      places.of(thread)[0] = place;
    });
    const float hit = logits.load(first + target);
    const auto largest = team.template reduce<float>([&](int thread) { return own.of(thread)[0]; }, Largest{});
    const float base = base_of(largest);
    const auto total = team.template reduce<float>(
        [&](int thread) { return own.of(thread)[1] * ::expf(base_of(own.of(thread)[0]) - base); }, Sum{});
    const auto place = team.template reduce<int>(
        [&](int thread) { return own.of(thread)[0] == largest ? places.of(thread)[0] : classes; }, Least{});
    if (d_logits.data != nullptr) {
      const float factor = scale / total;
      over_classes<n>(team, [&](int, int i) {
        Numbers<n> x = logits.load<n>(first + i);
        for (int j = 0; j < n; ++j) x.of[j] = ::expf(x.of[j] - base) * factor - (i + j == target ? scale : 0.0f);
        d_logits.store(first + i, x);
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
