#pragma once

// How a kernel of this room is written. It is a struct of its arguments that says how many blocks it takes, how many
// threads a block has and how much memory they share, and what one block does, with a team:
//
//   team.run(body)              body(thread) by each thread; then all wait for each other
//   team.start(body)            the same, but nobody waits
//   team.reduce(value, join)    value(thread) of all threads joined, in an order that is always the same; known to all
//   Team::Own<T, n>             n numbers that each thread has for itself, of(thread), as long as the block runs
//   team.shared()               floats that all threads of the block share
//   team.warps(body)            body(warp) by each 32 threads together; nobody waits
//   team.fetch(to, from, there) begins to copy 16 bytes to shared memory, zeros if they are not there; by a thread
//   team.end_fetch()            by all: what was fetched until here is a group
//   team.await_fetched<n>()     by all: waits for all groups but the last n, and for each other
//   team.halves(x, y)           both as bf16, x in the lower half
//   team.exp2(x)                2^x, to about 22 bits; 0 where that is subnormal
//   team.reciprocal(x)          1/x, to about 23 bits; 0 where x or that is subnormal
//
// What a warp has in its registers of 16·m rows, for tensor cores: Team::Warp<m>. Each member function takes the warp
// first:
//
//   RowNumbers                  a float for each row: fill(value), set(f(row)), change(f(x)), change(others,
//                               f(x, other)), read(f(row, x))
//   Sums<n>                     8·n columns of f32: fill(value), change(f(x, row, column)),
//                               change_rows(numbers, f(x, of the row)), join(others, f(x, other, row, column)),
//                               join_rows(numbers, others, f(x, other, of the row)), read(f(row, column, x, next x)) by
//                               pairs of columns, and gather(numbers, f): numbers = f of them and of all in their rows
//                               multiply<by_rows>(left, right, stride): adds left · right, where right is [16·k, 8·n]
//                               in shared memory, or [8·n, 16·k] unless by_rows
//   Left<k>                     16·k columns of bf16: load(from, stride) from shared memory, round(sums)
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

/// Numbers that lie side by side.
template <int n>
struct Numbers {
  float of[n];
};

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
  /// Eight at once: `data` must be aligned to 16 bytes, and `at` a multiple of 8. Or one.
  template <int n>
  constexpr Numbers<n> load(Index at) const {
    static_assert(n == 1 || n == 8);
    Numbers<n> numbers;
    if constexpr (n == 1) {
      numbers.of[0] = load(at);
    } else if (dtype == DType::f32) {
      const auto* const from = static_cast<const FourFloats*>(static_cast<const void*>(static_cast<float*>(data) + at));
      const FourFloats four = from[0], more = from[1];
      for (int i = 0; i < 4; ++i) {
        numbers.of[i] = four.of[i];
        numbers.of[i + 4] = more.of[i];
      }
    } else if (dtype == DType::bf16) {
      const EightHalves eight = *eight_halves(at);
      for (int i = 0; i < 8; ++i) numbers.of[i] = to_float(BFloat16{eight.of[i]});
    } else {
      const EightHalves eight = *eight_halves(at);
      for (int i = 0; i < 8; ++i) numbers.of[i] = to_float(Float16{eight.of[i]});
    }
    return numbers;
  }
  template <int n, class Team>
  constexpr void store(const Team& team, Index at, const Numbers<n>& numbers) const {
    if constexpr (n == 1) {
      store(at, numbers.of[0]);
    } else if (dtype == DType::f32) {
      auto* const to = static_cast<FourFloats*>(static_cast<void*>(static_cast<float*>(data) + at));
      for (int i = 0; i < 2; ++i) {
        to[i] = {numbers.of[4 * i], numbers.of[4 * i + 1], numbers.of[4 * i + 2], numbers.of[4 * i + 3]};
      }
    } else if (dtype == DType::bf16) {
      FourPairs pairs{};
      for (int i = 0; i < 4; ++i) pairs.of[i] = team.halves(numbers.of[2 * i], numbers.of[2 * i + 1]);
      *eight_halves(at) = __builtin_bit_cast(EightHalves, pairs);
    } else {
      EightHalves eight{};
      for (int i = 0; i < 8; ++i) eight.of[i] = to_float16(numbers.of[i]).bits;
      *eight_halves(at) = eight;
    }
  }
  template <class I>
  constexpr void store(I at, float value) const {
    if (dtype == DType::f32) {
      static_cast<float*>(data)[at] = value;
    } else {
      static_cast<std::uint16_t*>(data)[at] = dtype == DType::bf16 ? to_bfloat16(value).bits : to_float16(value).bits;
    }
  }

 private:
  struct alignas(16) FourFloats {
    float of[4];
  };
  struct alignas(16) EightHalves {
    std::uint16_t of[8];
  };
  struct alignas(16) FourPairs {
    std::uint32_t of[4];
  };
  constexpr EightHalves* eight_halves(Index at) const {
    return static_cast<EightHalves*>(static_cast<void*>(static_cast<std::uint16_t*>(data) + at));
  }
};

/// bf16 in memory.
using Half = std::uint16_t;

struct Sum {
  template <class T>
  constexpr T operator()(T a, T b) const {
    return a + b;
  }
};
struct Largest {
  constexpr float operator()(float a, float b) const { return ::fmaxf(a, b); }
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
        constexpr int ahead = 4;  // values that are computed before they are joined
        const Index step = team.threads();
        T all = first;
        Index i = thread;
        for (; i + (ahead - 1) * step < count; i += ahead * step) {
          T values[ahead];
          for (int j = 0; j < ahead; ++j) values[j] = value(i + j * step);
          for (const T& one : values) all = join(all, one);
        }
        for (; i < count; i += step) all = join(all, value(i));
        return all;
      },
      join);
}
template <class T, class Team, class Value>
constexpr T sum(const Team& team, Index count, Value value) {
  return reduce<T>(team, count, T{0}, value, Sum{});
}

inline constexpr float log2_of_e = 1.44269504f;

/// e^x, as team.exp2() has it.
template <class Team>
constexpr float exponential(const Team& team, float x) {
  return team.exp2(x * log2_of_e);
}

/// Kernels that do the same to each of many elements, which their blocks divide among them.
struct Elementwise {
  static constexpr int threads = 256;
  static constexpr Index of_block = 2048;
  Index count = 0;

  constexpr Index blocks() const { return divided_up(count, of_block); }
  constexpr Index shared_floats() const { return 0; }

  template <class Team, class Body>
  constexpr void over(const Team& team, Index block, Body body) const {
    const Index first = block * of_block;
    each(team, least(of_block, count - first), [&](Index i) { body(first + i); });
  }
  /// body.operator()<n>(i) for eight elements at once, or for each one.
  template <class Team, class Body>
  constexpr void over(const Team& team, Index block, bool eights, Body body) const {
    if (!eights) return over(team, block, [&](Index i) { body.template operator()<1>(i); });
    const Index first = block * of_block;
    each(team, least(of_block, count - first) / 8, [&](Index i) { body.template operator()<8>(first + 8 * i); });
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
