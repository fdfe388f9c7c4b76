// Chunks of all slices are converted to f64 once, and worked on while they are in cache.

#include "ops/adasum/slices.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "ops/kernels/element.h"

namespace kolo {
namespace {

constexpr std::int64_t chunk_elements = 512;
constexpr std::size_t lanes = 8;  // sums that are added side by side, so that a compiler may use vectors

/// Chunk elements as f64, zero beyond those there are.
using Chunk = std::array<double, chunk_elements>;

/// The f32 next to `value` that has an odd last bit, or `value` itself if it is an f32: rounding that to a type with
/// fewer bits gives the same as rounding `value`.
float round_to_odd(double value) {
  const auto nearest = static_cast<float>(value);
  if (static_cast<double>(nearest) == value) return nearest;
  const auto bits = std::bit_cast<std::uint32_t>(nearest);
  const bool away_from_zero = std::abs(static_cast<double>(nearest)) > std::abs(value);
  return std::bit_cast<float>((bits - (away_from_zero ? 1u : 0u)) | 1u);
}

template <class T>
T rounded(double value) {
  if constexpr (is_half_type<T>)
    return narrowed<T>(round_to_odd(value));
  else
    return static_cast<T>(value);
}

/// Calls body.template operator()<T>() with the C++ type of `dtype`.
template <class Body>
void with_float_type(DType dtype, Body body) {
  switch (dtype) {
    case DType::f64: return body.template operator()<double>();
    case DType::f32: return body.template operator()<float>();
    case DType::f16: return body.template operator()<Float16>();
    case DType::bf16: return body.template operator()<BFloat16>();
    default: throw std::logic_error("adasum of a type that is no float");
  }
}

template <class T>
T element(const std::byte* slice, std::int64_t index) {
  T value;
  std::memcpy(&value, slice + static_cast<std::size_t>(index) * sizeof(T), sizeof(T));
  return value;
}

/// Calls visit(begin, length) for the chunks of [0, count).
template <class Visit>
void for_each_chunk(std::int64_t count, Visit visit) {
  for (std::int64_t begin = 0; begin < count; begin += chunk_elements) {
    visit(begin, std::min(chunk_elements, count - begin));
  }
}

template <class T>
void load(const std::byte* slice, std::int64_t begin, std::int64_t length, double scale, Chunk& chunk) {
  for (std::int64_t i = 0; i < length; ++i) {
    chunk[static_cast<std::size_t>(i)] = static_cast<double>(widened(element<T>(slice, begin + i))) * scale;
  }
  std::fill(chunk.begin() + length, chunk.end(), 0.0);
}

double dot(const Chunk& a, const Chunk& b) {
  std::array<double, lanes> sums{};
  for (std::size_t i = 0; i < a.size(); i += lanes) {
    for (std::size_t lane = 0; lane < lanes; ++lane) sums[lane] += a[i + lane] * b[i + lane];
  }
  double sum = 0;
  for (const double part : sums) sum += part;
  return sum;
}

template <class T>
void multiply_slices_of(std::span<const std::byte* const> slices, std::int64_t count, const Gram& gram) {
  std::vector<Chunk> chunks(slices.size());
  std::ranges::fill(gram.products, 0.0);
  for_each_chunk(count, [&](std::int64_t begin, std::int64_t length) {
    for (std::size_t j = 0; j < slices.size(); ++j) {
      load<T>(slices[j], begin, length, std::ldexp(1.0, -static_cast<int>(gram.exponents[j])), chunks[j]);
      for (std::size_t i = 0; i <= j; ++i) gram.product(i, j) += dot(chunks[i], chunks[j]);
    }
  });
}

template <class T>
void add_weighted_of(std::span<const std::byte* const> slices, std::int64_t count,
                     std::span<const AdasumWeight> weights, std::byte* out) {
  Chunk sum;
  for_each_chunk(count, [&](std::int64_t begin, std::int64_t length) {
    for (std::size_t rank = 0; rank < slices.size(); ++rank) {
      const auto [factor, exponent] = weights[rank];
      for (std::int64_t i = 0; i < length; ++i) {
        const auto value = static_cast<double>(widened(element<T>(slices[rank], begin + i)));
        const double term = (exponent == 0 ? value : std::ldexp(value, exponent)) * factor;
        double& total = sum[static_cast<std::size_t>(i)];
        total = rank == 0 ? term : total + term;
      }
    }
    for (std::int64_t i = 0; i < length; ++i) {
      const T value = rounded<T>(sum[static_cast<std::size_t>(i)]);
      std::memcpy(out + static_cast<std::size_t>(begin + i) * sizeof(T), &value, sizeof(T));
    }
  });
}

}  // namespace

double exponent_of(DType dtype, const std::byte* slice, std::int64_t count) {
  if (dtype != DType::f64) return 0;
  double largest = 0;
  for (std::int64_t i = 0; i < count; ++i) largest = std::max(largest, std::abs(element<double>(slice, i)));
  return std::clamp(std::ilogb(largest), -960, 1022);
}

void multiply_slices(DType dtype, std::span<const std::byte* const> slices, std::int64_t count, const Gram& gram) {
  with_float_type(dtype, [&]<class T>() { multiply_slices_of<T>(slices, count, gram); });
}

void add_weighted(DType dtype, std::span<const std::byte* const> slices, std::int64_t count,
                  std::span<const AdasumWeight> weights, std::byte* out) {
  with_float_type(dtype, [&]<class T>() { add_weighted_of<T>(slices, count, weights, out); });
}

}  // namespace kolo
