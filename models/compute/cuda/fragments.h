#pragma once

#include <cstdint>
#include <utility>

#include "models/compute/cuda/team.h"

// What a warp keeps in registers for tensor cores (team.h says what for), as each of its lanes sees it:
//
//   Lane::index()                       0 … 31
//   Lane::exchanged(x, distance)        x of the lane whose number is index() ^ distance
//   Lane::load<transposed>(to, line)    four matrices of 8 × 8 from shared memory: the line is number index() mod 8 of
//                                       matrix index() / 8 (PTX: ldmatrix.m8n8.x4)
//   Lane::multiply_add(sums, a, b0, b1) sums [16, 8] += a [16, 16] · b [16, 8] (mma.m16n8k16)
//   Lane::rounded(first, second)        two numbers as bf16, the first in the lower half
//
// Of 8 × 8 elements lane l has those of row l / 4 in the columns 2·(l mod 4) and the next; of 16 × 8 sums these and
// those eight rows on; of a 16 × 16 operand those of its upper left, lower left, upper right and lower right quarter.
// (PTX ISA, "Matrix fragments for mma.m16n8k16 with floating point type".)

namespace kolo::models::cuda {

/// body(0), … body(n-1), so that what they index stays in registers.
template <int n, class Body>
constexpr void unrolled(Body body) {
  [&]<int... i>(std::integer_sequence<int, i...>) {
    (body(i), ...);
  }
  (std::make_integer_sequence<int, n>{});
}

/// Of 16·m rows: m times 16, which share what is read of a right operand.
template <class Lane, int m>
struct Fragments {
  static constexpr int row() { return Lane::index() / 4; }
  static constexpr int column() { return Lane::index() % 4 * 2; }

  template <int n>
  class Sums;
  template <int k>
  class Left;

  /// Rows row(), row() + 8 and so on; the four lanes of a row have the same.
  class RowNumbers {
   public:
    constexpr void fill(int, float value) {
      unrolled<2 * m>([&](int i) { of_[i] = value; });
    }
    template <class F>
    constexpr void set(int, F f) {
      unrolled<2 * m>([&](int i) { of_[i] = f(row() + 8 * i); });
    }
    template <class F>
    constexpr void change(int, F f) {
      unrolled<2 * m>([&](int i) { of_[i] = f(of_[i]); });
    }
    template <class F>
    constexpr void change(int, const RowNumbers& others, F f) {
      unrolled<2 * m>([&](int i) { of_[i] = f(of_[i], others.of_[i]); });
    }
    template <class F>
    constexpr void read(int, F f) const {
      if (column() == 0) unrolled<2 * m>([&](int i) { f(row() + 8 * i, of_[i]); });
    }

   private:
    template <int n>
    friend class Sums;
    float of_[2 * m];
  };

  template <int n>
  class Sums {
   public:
    constexpr void fill(int, float value) {
      each([&](float& x, int, int, int) { x = value; });
    }
    template <class F>
    constexpr void change(int, F f) {
      each([&](float& x, int r, int j, int i) { x = f(x, row_of(r, i), column_of(j, i)); });
    }
    template <class F>
    constexpr void change_rows(int, const RowNumbers& numbers, F f) {
      each([&](float& x, int r, int, int i) { x = f(x, numbers.of_[2 * r + i / 2]); });
    }
    template <class F>
    constexpr void join(int, const Sums& others, F f) {
      each([&](float& x, int r, int j, int i) { x = f(x, others.of_[r][j][i], row_of(r, i), column_of(j, i)); });
    }
    template <class F>
    constexpr void join_rows(int, const RowNumbers& numbers, const Sums& others, F f) {
      each([&](float& x, int r, int j, int i) { x = f(x, others.of_[r][j][i], numbers.of_[2 * r + i / 2]); });
    }
    template <class F>
    constexpr void read(int, F f) const {
      unrolled<m>([&](int r) {
        unrolled<n>([&](int j) {
          f(row_of(r, 0), column_of(j, 0), of_[r][j][0], of_[r][j][1]);
          f(row_of(r, 2), column_of(j, 2), of_[r][j][2], of_[r][j][3]);
        });
      });
    }
    template <class F>
    constexpr void gather(int, RowNumbers& numbers, F f) const {
      unrolled<2 * m>([&](int at) {
        const auto& of_rows = of_[at / 2];
        const int i = at % 2 * 2;
        float all = f(of_rows[0][i], of_rows[0][i + 1]);
        unrolled<n - 1>([&](int j) { all = f(all, f(of_rows[j + 1][i], of_rows[j + 1][i + 1])); });
        all = f(all, Lane::exchanged(all, 1));
        all = f(all, Lane::exchanged(all, 2));
        numbers.of_[at] = f(numbers.of_[at], all);
      });
    }
    template <bool by_rows, int k>
    constexpr void multiply(int, const Left<k>& left, const Half* right, int stride) {
      static_assert(n % 2 == 0);
      // Of the four matrices that lanes load: twice eight columns, of which each has twice eight terms.
      const int matrix = Lane::index() / 8, line = Lane::index() % 8;
      const int term = 8 * (matrix % 2), first = 8 * (matrix / 2);
      const Half* const at = right + (by_rows ? (term + line) * stride + first : (first + line) * stride + term);
      unrolled<k>([&](int i) {
        unrolled<n / 2>([&](int j) {
          std::uint32_t b[4];
          Lane::template load<by_rows>(b, at + (by_rows ? 16 * i * stride + 16 * j : 16 * j * stride + 16 * i));
          unrolled<m>([&](int r) {
            Lane::multiply_add(of_[r][2 * j], left.of_[r][i], b[0], b[1]);
            Lane::multiply_add(of_[r][2 * j + 1], left.of_[r][i], b[2], b[3]);
          });
        });
      });
    }

   private:
    template <int k>
    friend class Left;
    static constexpr int row_of(int r, int i) { return row() + 16 * r + i / 2 * 8; }
    static constexpr int column_of(int j, int i) { return column() + 8 * j + i % 2; }
    template <class F>
    constexpr void each(F f) {
      unrolled<m>([&](int r) { unrolled<n>([&](int j) { unrolled<4>([&](int i) { f(of_[r][j][i], r, j, i); }); }); });
    }
    float of_[m][n][4];
  };

  template <int k>
  class Left {
   public:
    constexpr void load(int, const Half* from, int stride) {
      const Half* const at = from + Lane::index() % 16 * stride + Lane::index() / 16 * 8;
      unrolled<m>([&](int r) {
        unrolled<k>([&](int i) { Lane::template load<false>(of_[r][i], at + 16 * r * stride + 16 * i); });
      });
    }
    /// Lanes have the elements of sums that they must have of an operand.
    constexpr void round(int, const Sums<2 * k>& sums) {
      unrolled<m>([&](int r) {
        unrolled<k>([&](int i) {
          unrolled<4>([&](int part) {
            const auto& quarter = sums.of_[r][2 * i + part / 2];
            of_[r][i][part] = Lane::rounded(quarter[part % 2 * 2], quarter[part % 2 * 2 + 1]);
          });
        });
      });
    }

   private:
    template <int n>
    friend class Sums;
    std::uint32_t of_[m][k][4];
  };
};

}  // namespace kolo::models::cuda
