#pragma once

// Kernels on images of filter blocks; see kernel_vectors.h for their compilation, and kernels.h for their contracts.

#include "models/compute/kernel_vectors.h"

namespace kolo::models {
namespace {

/// The four pixels of a pooling window, after the norm.
struct Four {
  Floats of[4];
};

template <class Extent>
inline Four four_at(const PoolView& view, std::int64_t row, std::int64_t column, std::int64_t i, Extent extent) {
  Four four;
  for (std::int64_t n = 0; n < 4; ++n) {
    const std::int64_t place = (2 * row + n / 2) * view.columns + 2 * column + n % 2;
    Floats value = load(view.x + place * view.block + i, extent);
    if (view.scale != nullptr) value = value * load(view.scale + i, extent) + load(view.shift + i, extent);
    four.of[n] = value;
  }
  return four;
}

/// The largest of the four and 0. NaN if the last one is NaN.
inline Floats pooled_of(const Four& four) {
  Floats most{};
  for (const Floats& value : four.of) most = value <= most ? most : value;
  return most;
}

inline void relu_pool(const PoolView& view, float* pooled) {
  for (std::int64_t row = 0; row < view.rows / 2; ++row) {
    for (std::int64_t column = 0; column < view.columns / 2; ++column, pooled += view.block) {
      over(view.block, [&](std::int64_t i, auto extent) {
        store(pooled + i, pooled_of(four_at(view, row, column, i, extent)), extent);
      });
    }
  }
}

inline void clear_places(const PoolView& view, std::int64_t first, std::int64_t count, float* d) {
  for (std::int64_t i = first * view.block; i < (first + count) * view.block; ++i) d[i] = 0;
}

inline void relu_pool_backward(const PoolView& view, const float* d_pooled, float* d) {
  const std::int64_t rows = view.rows / 2, columns = view.columns / 2;
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t column = 0; column < columns; ++column, d_pooled += view.block) {
      over(view.block, [&](std::int64_t i, auto extent) {
        const Four four = four_at(view, row, column, i, extent);
        const Floats most = pooled_of(four), gradient = load(d_pooled + i, extent);
        Integers left = most > 0.0f;  // the first of the largest gets the gradient
        for (std::int64_t n = 0; n < 4; ++n) {
          const Integers takes = (four.of[n] == most) & left;
          left &= ~takes;
          const std::int64_t place = (2 * row + n / 2) * view.columns + 2 * column + n % 2;
          store(d + place * view.block + i, takes ? gradient : Floats{}, extent);
        }
      });
    }
    if (2 * columns < view.columns) {
      clear_places(view, 2 * row * view.columns + 2 * columns, 1, d);
      clear_places(view, (2 * row + 1) * view.columns + 2 * columns, 1, d);
    }
  }
  if (2 * rows < view.rows) clear_places(view, 2 * rows * view.columns, view.columns, d);
}

inline void column_sums(std::int64_t rows, std::int64_t columns, const float* x, const float* centre, double* sums,
                        double* squares) {
  over(columns, [&](std::int64_t i, auto extent) {
    const Floats middle = centre == nullptr ? Floats{} : load(centre + i, extent);
    Floats sum{}, square{};
    for (std::int64_t row = 0; row < rows; ++row) {
      const Floats value = load(x + row * columns + i, extent) - middle;
      sum += value;
      square += value * value;
    }
    for (std::int64_t lane = 0; lane < lanes && i + lane < columns; ++lane) {
      sums[i + lane] += static_cast<double>(sum[lane]);
      squares[i + lane] += static_cast<double>(square[lane]);
    }
  });
}

inline void column_products(std::int64_t rows, std::int64_t columns, const float* d, const float* x,
                            const float* centre, double* sums, double* products) {
  over(columns, [&](std::int64_t i, auto extent) {
    const Floats middle = load(centre + i, extent);
    Floats sum{}, product{};
    for (std::int64_t row = 0; row < rows; ++row) {
      const Floats gradient = load(d + row * columns + i, extent);
      sum += gradient;
      product += gradient * (load(x + row * columns + i, extent) - middle);
    }
    for (std::int64_t lane = 0; lane < lanes && i + lane < columns; ++lane) {
      sums[i + lane] += static_cast<double>(sum[lane]);
      products[i + lane] += static_cast<double>(product[lane]);
    }
  });
}

inline void combine_columns(std::int64_t rows, std::int64_t columns, const float* a, const float* x, const float* b,
                            const float* c, float* d) {
  for (std::int64_t row = 0; row < rows; ++row, d += columns, x += columns) {
    over(columns, [&](std::int64_t i, auto extent) {
      const Floats gradient = load(d + i, extent) * load(a + i, extent);
      store(d + i, gradient + load(x + i, extent) * load(b + i, extent) + load(c + i, extent), extent);
    });
  }
}

}  // namespace
}  // namespace kolo::models
