#pragma once

#include "models/compute/cuda/team.h"

namespace kolo::models::cuda {

/// Sets every element, f32 or f64.
struct Fill : Elementwise {
  void* data = nullptr;
  bool wide = false;  ///< f64
  double value = 0;

  template <class Team>
  constexpr void operator()(const Team& team, Index block) const {
    over(team, block, [&](Index i) {
      if (wide) {
        static_cast<double*>(data)[i] = value;
      } else {
        static_cast<float*>(data)[i] = static_cast<float>(value);
      }
    });
  }
};

struct Cast : Elementwise {
  Items from, to;
  bool eights = false;

  template <class Team>
  constexpr void operator()(const Team& team, Index block) const {
    over(team, block, eights, [&]<int n>(Index i) { to.store(team, i, from.load<n>(i)); });
  }
};

/// sum = a + b.
struct Add : Elementwise {
  const float* a = nullptr;
  Items b;
  float* sum = nullptr;

  template <class Team>
  constexpr void operator()(const Team& team, Index block) const {
    over(team, block, [&](Index i) { sum[i] = a[i] + b.load(i); });
  }
};

/// Zeroes the elements of dy whose y (may be null) is not positive, and sums the rows of each chunk of rows. A block
/// has a chunk and a group of columns, a column for each thread.
struct BiasParts {
  static constexpr int threads = 128;
  Index rows = 0, columns = 0;
  Items y, dy;
  float* parts = nullptr;  ///< [chunks, columns]; null: no sums

  /// Of a chunk: there are at most 256 chunks, or they have 32 rows each.
  constexpr Index of_chunk() const { return most(32, divided_up(rows, 256)); }
  constexpr Index chunks() const { return divided_up(rows, of_chunk()); }
  constexpr Index groups() const { return divided_up(columns, threads); }
  constexpr Index blocks() const { return chunks() * groups(); }
  constexpr Index shared_floats() const { return 0; }

  template <class Team>
  constexpr void operator()(const Team& team, Index block) const {
    const Index chunk = block / groups(), group = block % groups();
    const Index first = chunk * of_chunk(), end = least(rows, first + of_chunk());
    team.run([&](int thread) {
      const Index column = group * threads + thread;
      if (column >= columns) return;
      float sum = 0;
      for (Index row = first; row < end; ++row) {
        const Index at = row * columns + column;
        const bool zero = y.data != nullptr && !(y.load(at) > 0);
        if (zero)
          dy.store(at, 0);
        else
          sum += dy.load(at);
      }
      if (parts != nullptr) parts[chunk * columns + column] = sum;
    });
  }
};

/// to = the sum of parts [parts, count], or added to it. Of the numbers of a row of `width`, those beyond the first
/// width-1 go to `last`, if there is one. A block has eight numbers, and 32 threads for each.
struct SumParts {
  static constexpr int threads = 256, numbers = 8, lanes = threads / numbers;
  Index count = 0;
  const float* from = nullptr;
  Index parts = 0;
  bool add = false;
  float* to = nullptr;
  float* last = nullptr;
  Index width = 0;

  constexpr Index blocks() const { return divided_up(count, numbers); }
  constexpr Index shared_floats() const { return threads; }

  template <class Team>
  constexpr void operator()(const Team& team, Index block) const {
    float* const of_lanes = team.shared();
    team.run([&](int thread) {
      const Index i = block * numbers + thread % numbers;
      float sum = 0;
      for (Index part = thread / numbers; i < count && part < parts; part += lanes) sum += from[part * count + i];
      of_lanes[thread] = sum;
    });
    team.run([&](int thread) {
      const Index i = block * numbers + thread;
      if (thread >= numbers || i >= count) return;
      float sum = 0;
      for (int lane = 0; lane < lanes; ++lane) sum += of_lanes[lane * numbers + thread];
      float* at = to + i;
      if (last != nullptr) at = i % width == width - 1 ? last + i / width : to + (i - i / width);
      *at = add ? *at + sum : sum;
    });
  }
};

}  // namespace kolo::models::cuda
