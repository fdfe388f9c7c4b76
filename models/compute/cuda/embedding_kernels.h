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

/// d_table += the rows of d by their tokens. Sorted keys are in chunks, of which a block has some columns and adds up
/// the rows of each token. What is not of one chunk alone goes to parts [chunks, 2, dim], the sum of a token that comes
/// from the chunk before and of one that goes on into the next; then JoinEmbeddings.
struct EmbedBackward {
  static constexpr int threads = 256;
  static constexpr Index of_chunk = 64;
  static constexpr int ahead = 8;       ///< rows that are read before they are added
  Index count = 0;                      ///< of tokens
  const std::uint64_t* keys = nullptr;  ///< sorted
  const float* d = nullptr;
  Index dim = 0;
  float *d_table = nullptr, *parts = nullptr;

  constexpr Index chunks() const { return divided_up(count, of_chunk); }
  constexpr Index blocks() const { return chunks() * divided_up(dim, threads); }
  constexpr Index shared_floats() const { return 0; }

  constexpr Index token_of(Index key) const { return static_cast<Index>(keys[key] >> 32); }
  constexpr Index row_of(Index key) const { return static_cast<Index>(keys[key] & 0xffffffff); }
  /// Whether the token before, or behind, is the same.
  constexpr bool goes_on(Index key) const { return key > 0 && key < count && token_of(key - 1) == token_of(key); }
  /// body(column) for those of a block.
  template <class Team, class Body>
  constexpr void over_columns(const Team& team, Index block, Body body) const {
    team.run([&](int thread) {
      const Index i = block / chunks() * threads + thread;
      if (i < dim) body(i);
    });
  }

  template <class Team>
  constexpr void operator()(const Team& team, Index block) const {
    const Index chunk = block % chunks(), first = chunk * of_chunk, end = least(count, first + of_chunk);
    over_columns(team, block, [&](Index i) {
      bool from_before = goes_on(first);
      float sum = 0;
      for (Index key = first; key < end; key += ahead) {
        float values[ahead];
        for (int j = 0; j < ahead; ++j) values[j] = key + j < end ? d[row_of(key + j) * dim + i] : 0.0f;
        for (int j = 0; j < ahead && key + j < end; ++j) {
          sum += values[j];
          const Index next = key + j + 1;
          if (next < end && goes_on(next)) continue;
          const bool into_next = next == end && goes_on(end);
          if (from_before || into_next)
            parts[(2 * chunk + (from_before ? 0 : 1)) * dim + i] = sum;
          else
            d_table[token_of(key + j) * dim + i] += sum;
          from_before = false;
          sum = 0;
        }
      }
    });
  }
};

/// Adds the parts of tokens of several chunks, in their order; by the blocks of the chunks where they begin.
struct JoinEmbeddings : EmbedBackward {
  template <class Team>
  constexpr void operator()(const Team& team, Index block) const {
    const Index chunk = block % chunks(), end = (chunk + 1) * of_chunk;
    if (!goes_on(end)) return;
    const Index token = token_of(end);
    if (token_of(chunk * of_chunk) == token && goes_on(chunk * of_chunk)) return;  // it begins before
    over_columns(team, block, [&](Index i) {
      float sum = parts[(2 * chunk + 1) * dim + i];
      for (Index next = chunk + 1; next < chunks() && token_of(next * of_chunk) == token; ++next)
        sum += parts[2 * next * dim + i];
      d_table[token * dim + i] += sum;
    });
  }
};

}  // namespace kolo::models::cuda
