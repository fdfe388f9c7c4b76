#pragma once

// Kernels on images of filter blocks; see kernel_vectors.h for their compilation, and kernels.h for their contracts.

#include "models/compute/kernel_vectors.h"

namespace kolo::models {
namespace {

/// The pixels of a pooling window, after the norm.
template <std::int64_t window>
struct Window {
  static constexpr std::int64_t pixels = window * window;

  template <class Extent>
  Window(const PoolView& view, std::int64_t row, std::int64_t column, std::int64_t i, Extent extent) {
    for (std::int64_t n = 0; n < pixels; ++n) {
      Floats value = load(view.x + place(view, row, column, n) * view.block + i, extent);
      if (view.scale != nullptr) value = value * load(view.scale + i, extent) + load(view.shift + i, extent);
      of[n] = value;
    }
  }

  static std::int64_t place(const PoolView& view, std::int64_t row, std::int64_t column, std::int64_t n) {
    return (window * row + n / window) * view.columns + window * column + n % window;
  }

  /// The largest of them and the floor.
  Floats largest(float floor) const {
    Floats most = all(floor);
    for (const Floats& value : of) most = value <= most ? most : value;
    return most;
  }

  /// The same; NaN if one is NaN.
  Floats largest_or_nan(float floor) const {
    Floats most = largest(floor);
    Integers number = of[pixels - 1] == of[pixels - 1];
    for (std::int64_t n = 0; n + 1 < pixels; ++n) number &= of[n] == of[n];
    return number ? most : all(NAN);
  }

  Floats of[pixels];
};

template <std::int64_t window>
inline void pool_windows(const PoolView& view, float* pooled) {
  for (std::int64_t row = 0; row < view.rows / window; ++row) {
    for (std::int64_t column = 0; column < view.columns / window; ++column, pooled += view.block) {
      over(view.block, [&](std::int64_t i, auto extent) {
        store(pooled + i, Window<window>(view, row, column, i, extent).largest_or_nan(view.floor), extent);
      });
    }
  }
}

inline void pool(const PoolView& view, float* pooled) {
  view.window == 1 ? pool_windows<1>(view, pooled) : pool_windows<2>(view, pooled);
}

inline void clear_places(const PoolView& view, std::int64_t first, std::int64_t count, float* d) {
  for (std::int64_t i = first * view.block; i < (first + count) * view.block; ++i) d[i] = 0;
}

template <std::int64_t window>
inline void pool_windows_backward(const PoolView& view, const float* d_pooled, float* d) {
  const std::int64_t rows = view.rows / window, columns = view.columns / window;
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t column = 0; column < columns; ++column, d_pooled += view.block) {
      over(view.block, [&](std::int64_t i, auto extent) {
        const Window<window> pixels(view, row, column, i, extent);
        const Floats most = pixels.largest(view.floor), gradient = load(d_pooled + i, extent);
        Integers left = most > view.floor;  // the first of the largest gets the gradient
        for (std::int64_t n = 0; n < pixels.pixels; ++n) {
          const Integers takes = (pixels.of[n] == most) & left;
          left &= ~takes;
          store(d + pixels.place(view, row, column, n) * view.block + i, takes ? gradient : Floats{}, extent);
        }
      });
    }
    if (window * columns < view.columns) {
      clear_places(view, 2 * row * view.columns + 2 * columns, 1, d);
      clear_places(view, (2 * row + 1) * view.columns + 2 * columns, 1, d);
    }
  }
  if (window * rows < view.rows) clear_places(view, window * rows * view.columns, view.columns, d);
}

inline void pool_backward(const PoolView& view, const float* d_pooled, float* d) {
  view.window == 1 ? pool_windows_backward<1>(view, d_pooled, d) : pool_windows_backward<2>(view, d_pooled, d);
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
