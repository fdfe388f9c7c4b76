#pragma once

// Kernels on the planes of one image; see kernel_vectors.h for their compilation, kernels.h for their contracts, and
// image_plan.h for the order of planes.

#include "models/compute/kernel_vectors.h"

namespace kolo::models {
namespace {

/// Vectors of each row in registers: with those of the input and a weight they fill most of the registers.
inline constexpr int plane_vectors = vector_bytes == 64 ? 4 : 3;

/// Calls body(first, vectors) for pieces of `count` floats; `vectors` is a constant.
template <class Body>
inline void over_planes(std::int64_t count, Body body) {
  std::int64_t i = 0;
  for (; i + plane_vectors * lanes <= count; i += plane_vectors * lanes) body(i, Count<plane_vectors>{});
  for (; i < count; i += lanes) body(i, Count<1>{});
}

inline void correlate(const TapView& view, const float* weights, const float* first, const float* in, float* out) {
  constexpr int rows = filters_at_a_time;
  for (std::int64_t part = 0; part < view.parts; ++part, out += view.plane) {
    const std::int64_t* const offsets = view.offsets + part * view.taps;
    over_planes(view.count, [&](std::int64_t i, auto constant) {
      constexpr int vectors = decltype(constant)::value;
      Floats sums[rows][vectors];
      for (int row = 0; row < rows; ++row) {
        for (int v = 0; v < vectors; ++v) sums[row][v] = all(first[row]);
      }
      for (std::int64_t tap = 0; tap < view.taps; ++tap) {
        const float *const from = in + offsets[tap] + i, *const weight = weights + tap * rows;
        Floats x[vectors];
        for (int v = 0; v < vectors; ++v) x[v] = load(from + v * lanes, Full{});
        for (int row = 0; row < rows; ++row) {
          for (int v = 0; v < vectors; ++v) sums[row][v] += weight[row] * x[v];
        }
      }
      for (int row = 0; row < rows; ++row) {
        for (int v = 0; v < vectors; ++v) {
          store(out + row * view.filter + i + v * lanes, sums[row][v], Full{});
        }
      }
    });
  }
}

/// Of `taps` taps, whose offsets in part 0 begin at `offsets`.
template <int taps>
inline void correlate_taps_back(const TapView& view, const std::int64_t* offsets, const float* d, const float* in,
                                float* sums) {
  constexpr int rows = filters_at_a_time;
  Floats of[taps][rows];
  for (int tap = 0; tap < taps; ++tap) {
    for (int row = 0; row < rows; ++row) of[tap][row] = load(sums + (tap * rows + row) * vector_floats, Full{});
  }
  for (std::int64_t part = 0; part < view.parts; ++part, offsets += view.taps, d += view.plane) {
    const float* from[taps];
    for (int tap = 0; tap < taps; ++tap) from[tap] = in + offsets[tap];
    for (std::int64_t i = 0; i < view.count; i += lanes) {
      Floats x[taps];
      for (int tap = 0; tap < taps; ++tap) x[tap] = load(from[tap] + i, Full{});
      for (int row = 0; row < rows; ++row) {
        const Floats gradient = load(d + row * view.filter + i, Full{});
        for (int tap = 0; tap < taps; ++tap) of[tap][row] += gradient * x[tap];
      }
    }
  }
  for (int tap = 0; tap < taps; ++tap) {
    for (int row = 0; row < rows; ++row) store(sums + (tap * rows + row) * vector_floats, of[tap][row], Full{});
  }
}

inline void correlate_back(const TapView& view, const float* d, const float* in, float* sums) {
  constexpr std::int64_t of_tap = filters_at_a_time * vector_floats;
  std::int64_t tap = 0;
  for (; tap + 3 <= view.taps; tap += 3) {
    correlate_taps_back<3>(view, view.offsets + tap, d, in, sums + tap * of_tap);
  }
  for (; tap < view.taps; ++tap) correlate_taps_back<1>(view, view.offsets + tap, d, in, sums + tap * of_tap);
}

inline Integers load_mask(const std::int32_t* from) {
  return load_bytes<Integers>(from, Full{});
}

/// Calls body(row, column, place in the row's windows, Full or Part) for vectors of windows. At the ends of rows a Full
/// one reaches into the next row, which comes later.
template <class Body>
inline void over_windows(const PoolView& view, Body body) {
  const std::int64_t all = view.rows * view.columns;
  for (std::int64_t row = 0; row < view.rows; ++row) {
    for (std::int64_t column = 0; column < view.columns; column += lanes) {
      const std::int64_t window = row * view.columns + column;
      window + lanes <= all ? body(row, column, window, Full{}) : body(row, column, window, Part{all - window});
    }
  }
}

/// The number of each lane.
inline Integers lane_numbers() {
  Integers numbers{};
  for (std::int32_t lane = 0; lane < lanes; ++lane) numbers[lane] = lane;
  return numbers;
}

inline Integers all_of(std::int64_t number) {
  return Integers{} + static_cast<std::int32_t>(number);
}

/// Calls body(n) for the pixels of a window; the most usual count is known to the compiler.
template <int known, class Body>
inline void over_pixels(const PoolView& view, Body body) {
  if constexpr (known > 0) {
#pragma GCC unroll 4
    for (std::int64_t n = 0; n < known; ++n) body(n);
  } else {
    for (std::int64_t n = 0; n < view.pixels; ++n) body(n);
  }
}

// A copy of the view stays in registers: what is stored in between might change the view itself.
template <int known, bool padded>
inline void pool_windows(const PoolView& given, const float* planes, float* y, std::uint16_t* chosen) {
  const PoolView view = given;
  const Integers none = all_of(view.pixels), numbers = lane_numbers();
  over_windows(view, [&](std::int64_t row, std::int64_t column, std::int64_t window, auto extent) {
    Floats most = all(view.floor);
    Integers which = none;
    over_pixels<known>(view, [&](std::int64_t n) {
      const std::int64_t pixel = view.offsets[n] + row * view.pitch + column;
      Floats value = load(planes + pixel, Full{}) * view.scale + view.shift;
      if constexpr (padded) value = load_mask(view.inside + pixel) ? value : all(-INFINITY);
      const Integers nan = value != value;  // NOLINT(misc-redundant-expression)
      const Integers takes = (value > most) | nan;
      most = takes ? value : most;
      which = takes ? all_of(n) : which;
    });
    which = numbers < all_of(view.columns - column) ? which : none;
    store(y + window, most, extent);
    store_bytes(chosen + row * view.width() + column, __builtin_convertvector(reinterpret_cast<Words>(which), Halves),
                Full{});
  });
}

inline void pool(const PoolView& view, const float* planes, float* y, std::uint16_t* chosen) {
  if (view.inside != nullptr) return pool_windows<0, true>(view, planes, y, chosen);
  view.pixels == 4 ? pool_windows<4, false>(view, planes, y, chosen) : pool_windows<0, false>(view, planes, y, chosen);
}

template <int known, bool tiled>
inline float pool_windows_backward(const PoolView& given, const float* d, const std::uint16_t* chosen,
                                   float* d_planes) {
  const PoolView view = given;
  Floats sum{};
  over_windows(view, [&](std::int64_t row, std::int64_t column, std::int64_t window, auto extent) {
    const Floats gradient = load(d + window, extent);
    const auto which =
        __builtin_convertvector(load_bytes<Halves>(chosen + row * view.width() + column, Full{}), Integers);
    over_pixels<known>(view, [&](std::int64_t n) {
      float* const to = d_planes + view.offsets[n] + row * view.pitch + column;
      const Floats taken = which == all_of(n) ? gradient : Floats{};
      store(to, tiled ? taken : load(to, Full{}) + taken, Full{});
    });
    sum += which < all_of(view.pixels) ? gradient : Floats{};
  });
  return sum_of(sum);
}

inline float pool_backward(const PoolView& view, const float* d, const std::uint16_t* chosen, float* d_planes) {
  if (view.tiled && view.pixels == 4) return pool_windows_backward<4, true>(view, d, chosen, d_planes);
  if (view.tiled) return pool_windows_backward<0, true>(view, d, chosen, d_planes);
  for (std::int64_t i = 0; i < view.parts * view.plane; i += lanes) store(d_planes + i, Floats{}, Full{});
  return pool_windows_backward<0, false>(view, d, chosen, d_planes);
}

inline void plane_sums(std::int64_t count, const float* x, const std::int32_t* inside, float centre, float* sum,
                       float* square) {
  Floats sums{}, squares{};
  for (std::int64_t i = 0; i < count; i += lanes) {
    const Floats value = load_mask(inside + i) ? load(x + i, Full{}) - centre : Floats{};
    sums += value;
    squares += value * value;
  }
  *sum = sum_of(sums);
  *square = sum_of(squares);
}

inline float plane_products(std::int64_t count, const float* d, const float* x, const std::int32_t* inside,
                            float centre) {
  Floats sum{};
  for (std::int64_t i = 0; i < count; i += lanes) {
    sum += load_mask(inside + i) ? load(d + i, Full{}) * (load(x + i, Full{}) - centre) : Floats{};
  }
  return sum_of(sum);
}

inline float combine_planes(std::int64_t count, float a, float b, float c, const float* x, const std::int32_t* inside,
                            float* d) {
  Floats sum{};
  for (std::int64_t i = 0; i < count; i += lanes) {
    const Floats gradient = load(d + i, Full{}) * a + load(x + i, Full{}) * b + c;
    const Floats of_image = load_mask(inside + i) ? gradient : Floats{};
    store(d + i, of_image, Full{});
    sum += of_image;
  }
  return sum_of(sum);
}

}  // namespace
}  // namespace kolo::models
