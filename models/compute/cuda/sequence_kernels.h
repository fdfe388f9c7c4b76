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

/// d_table += the rows of d by their tokens, in the order of the rows. The block of a token's first key has that token.
struct EmbedBackward : Rowwise<128> {
  const std::uint64_t* keys = nullptr;  ///< sorted
  const float* d = nullptr;
  Index dim = 0;
  float* d_table = nullptr;

  template <class Team>
  constexpr void operator()(const Team& team, Index at) const {
    const std::uint64_t token = keys[at] >> 32;
    if (at > 0 && keys[at - 1] >> 32 == token) return;
    each(team, dim, [&](Index i) {
      float* const to = d_table + static_cast<Index>(token) * dim + i;
      float sum = *to;
      for (Index key = at; key < rows && keys[key] >> 32 == token; ++key) {
        sum += d[static_cast<Index>(keys[key] & 0xffffffff) * dim + i];
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
  Index positions = 0, heads = 0, kv_heads = 0, head_dim = 0, width = 0;
  const float *cosine = nullptr, *sine = nullptr;  ///< [positions, head_dim / 2]
  float scale = 1;                                 ///< of queries
  float *q = nullptr, *k = nullptr, *v = nullptr;

  constexpr Index all() const { return heads + 2 * kv_heads; }
  /// The row of one head, counted through queries, keys and values.
  constexpr float* of_head(Index row, Index head) const {
    const Index sequence = row / positions, position = row % positions;
    if (head < heads) return q + ((sequence * heads + head) * positions + position) * width;
    const Index of = head - heads;
    float* const to = of < kv_heads ? k : v;
    return to + ((sequence * kv_heads + of % kv_heads) * positions + position) * width;
  }
  /// Element i of a row of one head, rotated by the angle of its position, or by its opposite. `element` gives those of
  /// the row.
  template <class Element>
  constexpr float rotated(Index row, Index head, Index i, float direction, Element element) const {
    if (head >= heads + kv_heads) return element(i);
    const Index half = head_dim / 2, pair = i % half, at = row % positions * half + pair;
    const float a = element(pair), b = element(half + pair), s = sine[at] * direction;
    const float turned = i < half ? a * cosine[at] - b * s : b * cosine[at] + a * s;
    return head < heads ? turned * scale : turned;
  }
};

/// As Compute::split_heads().
struct SplitHeads : HeadRows {
  const float* rows_of_all = nullptr;

  template <class Team>
  constexpr void operator()(const Team& team, Index row) const {
    each(team, all() * width, [&](Index at) {
      const Index head = at / width, i = at % width;
      const float* const from = rows_of_all + (row * all() + head) * head_dim;
      of_head(row, head)[i] = i < head_dim ? rotated(row, head, i, 1, [&](Index e) { return from[e]; }) : 0.0f;
    });
  }
};

/// The way back of gradients of heads: rows of all, rounded.
struct MergeHeads : HeadRows {
  Items rows_of_all;

  template <class Team>
  constexpr void operator()(const Team& team, Index row) const {
    each(team, all() * head_dim, [&](Index at) {
      const Index head = at / head_dim;
      const float* const from = of_head(row, head);
      rows_of_all.store(row * all() * head_dim + at,
                        rotated(row, head, at % head_dim, -1, [&](Index e) { return from[e]; }));
    });
  }
};

template <class T>
constexpr T sigmoid(T x) {
  return 1.0f / (1.0f + ::expf(-x));
}

/// As Compute::swiglu(); `count` is that of s.
struct Swiglu : Elementwise {
  const float* gate_up = nullptr;
  Index width = 0;
  Items s;

  template <class Team>
  constexpr void operator()(const Team& team, Index block) const {
    over(team, block, [&](Index i) {
      const float* const gate = gate_up + i / width * 2 * width + i % width;
      s.store(i, *gate * sigmoid(*gate) * gate[width]);
    });
  }
};

struct SwigluBackward : Elementwise {
  const float *gate_up = nullptr, *ds = nullptr;
  Index width = 0;
  Items d_gate_up, s;

  template <class Team>
  constexpr void operator()(const Team& team, Index block) const {
    over(team, block, [&](Index i) {
      const Index at = i / width * 2 * width + i % width;
      const float gate = gate_up[at], up = gate_up[at + width], gradient = ds[i];
      const float soft = sigmoid(gate), silu = gate * soft;
      d_gate_up.store(at, gradient * up * (soft + silu * (1 - soft)));
      d_gate_up.store(at + width, gradient * silu);
      s.store(i, silu * up);
    });
  }
};

/// As Compute::cross_entropy(), of one row; what is summed over rows goes to results [3, rows].
struct CrossEntropy : Rowwise<256> {
  const float* logits = nullptr;
  const std::int32_t* targets = nullptr;
  Index classes = 0;
  float scale = 1;
  float* d_logits = nullptr;
  double* results = nullptr;

  template <class Team>
  constexpr void operator()(const Team& team, Index row) const {
    const float* const from = logits + row * classes;
    float* const to = d_logits == nullptr ? nullptr : d_logits + row * classes;
    const Index target = targets[row];
    if (target < 0) {
      each(team, to == nullptr ? 3 : most(classes, 3), [&](Index i) {
        if (to != nullptr && i < classes) to[i] = 0;
        if (i < 3) results[i * rows + row] = 0;
      });
      return;
    }
    const float largest = reduce<float>(
        team, classes, -HUGE_VALF, [&](Index i) { return from[i]; }, Largest{});
    const Index first = reduce<Index>(
        team, classes, classes, [&](Index i) { return from[i] == largest ? i : classes; }, Least{});
    const float hit = from[target];
    const auto total = sum<float>(team, classes, [&](Index i) { return ::expf(from[i] - largest); });
    const float factor = scale / total;
    each(team, to == nullptr ? 1 : classes, [&](Index i) {
      if (to != nullptr) to[i] = ::expf(from[i] - largest) * factor - (i == target ? scale : 0.0f);
      if (i > 0) return;
      results[row] = ::log(static_cast<double>(total)) - (static_cast<double>(hit) - static_cast<double>(largest));
      results[rows + row] = (first == classes ? 0 : first) == target ? 1 : 0;
      results[2 * rows + row] = 1;
    });
  }
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
