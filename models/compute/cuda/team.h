#pragma once

// How a kernel of this room is written. It is a struct of its arguments that says how many blocks it takes, how many
// threads a block has and how much memory they share, and what one block does, with a team:
//
//   team.run(body)              body(thread) by each thread; then all wait for each other
//   team.reduce(value, join)    value(thread) of all threads joined, in an order that is always the same; known to all
//   Team::Own<T, n>             n numbers that each thread has for itself, of(thread), as long as the block runs
//   team.shared()               floats that all threads of the block share
//   team.warps(body)            body(warp) by each 32 threads together; then all wait for each other
//   Team::Accumulators<n>       n squares of 16 × 16 sums that each warp has: zero(warp), store(warp, i, to, stride),
//                               scale(warp, i, factors, stride), and multiply<a_by_columns, b_by_columns>(warp, i, a,
//                               stride, b, stride), which adds the product of two squares of bf16
//
// Within one run() no thread reads what another one writes. A GPU's team is in cuda_device.cu; tests run the same
// functions with a team of the host, thread by thread, in one order and in the opposite one. All is constexpr since
// nvcc compiles that for both sides. Compiled without contraction; fmaf() is written where it is meant.

#include <math.h>  // NOLINT(modernize-deprecated-headers): functions that both sides have

#include <cstdint>

#include <kolo/dtype.h>
#include <kolo/float16.h>

namespace kolo::models::cuda {

using Index = std::int64_t;

constexpr Index divided_up(Index number, Index divisor) {
  return (number + divisor - 1) / divisor;
}
constexpr Index least(Index a, Index b) {
  return a < b ? a : b;
}
constexpr Index most(Index a, Index b) {
  return a > b ? a : b;
}

/// Numbers of a dtype that is known when a kernel runs: f32, bf16 or f16.
struct Items {
  void* data = nullptr;
  DType dtype = DType::f32;

  template <class I>
  constexpr float load(I at) const {
    if (dtype == DType::f32) return static_cast<const float*>(data)[at];
    const std::uint16_t bits = static_cast<const std::uint16_t*>(data)[at];
    return dtype == DType::bf16 ? to_float(BFloat16{bits}) : to_float(Float16{bits});
  }
  template <class I>
  constexpr void store(I at, float value) const {
    if (dtype == DType::f32) {
      static_cast<float*>(data)[at] = value;
    } else {
      static_cast<std::uint16_t*>(data)[at] = dtype == DType::bf16 ? to_bfloat16(value).bits : to_float16(value).bits;
    }
  }
};

struct Sum {
  template <class T>
  constexpr T operator()(T a, T b) const {
    return a + b;
  }
};
struct Largest {
  template <class T>
  constexpr T operator()(T a, T b) const {
    return a > b ? a : b;
  }
};
struct Least {
  template <class T>
  constexpr T operator()(T a, T b) const {
    return a < b ? a : b;
  }
};

/// body(i) for each i below count, dealt to the threads of a block in turn.
template <class Team, class Body>
constexpr void each(const Team& team, Index count, Body body) {
  team.run([&](int thread) {
    for (Index i = thread; i < count; i += team.threads()) body(i);
  });
}

/// value(i) of each i below count, joined.
template <class T, class Team, class Value, class Join>
constexpr T reduce(const Team& team, Index count, T first, Value value, Join join) {
  return team.template reduce<T>(
      [&](int thread) {
        T all = first;
        for (Index i = thread; i < count; i += team.threads()) all = join(all, value(i));
        return all;
      },
      join);
}
template <class T, class Team, class Value>
constexpr T sum(const Team& team, Index count, Value value) {
  return reduce<T>(team, count, T{0}, value, Sum{});
}

/// Kernels that do the same to each of many elements, which their blocks divide among them.
struct Elementwise {
  static constexpr int threads = 256;
  static constexpr Index of_block = 1024;
  Index count = 0;

  constexpr Index blocks() const { return divided_up(count, of_block); }
  constexpr Index shared_floats() const { return 0; }

  template <class Team, class Body>
  constexpr void over(const Team& team, Index block, Body body) const {
    const Index first = block * of_block;
    each(team, least(of_block, count - first), [&](Index i) { body(first + i); });
  }
};

/// Kernels of which each block has a row.
template <int of_row>
struct Rowwise {
  static constexpr int threads = of_row;
  Index rows = 0;

  constexpr Index blocks() const { return rows; }
  constexpr Index shared_floats() const { return 0; }
};

}  // namespace kolo::models::cuda
