#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <kolo/dtype.h>

#include "ops/adasum/weights.h"

namespace kolo {

/// The exponent that a Gram needs for a vector with this slice of `count` floats, at least: that of the power of two
/// below its largest magnitude for f64 (within limits that keep weights finite), 0 for other types, whose products an
/// f64 holds.
double exponent_of(DType dtype, const std::byte* slice, std::int64_t count);

/// Writes the products of slices of `count` floats, one of each rank, under the exponents of `gram`. Adds in f64, in an
/// order that depends on `count` only.
void multiply_slices(DType dtype, std::span<const std::byte* const> slices, std::int64_t count, const Gram& gram);

/// Writes the weighted sum of the slices, in rank order, to `out`, which may be one of them. Adds in f64 and rounds
/// once.
void add_weighted(DType dtype, std::span<const std::byte* const> slices, std::int64_t count,
                  std::span<const AdasumWeight> weights, std::byte* out);

}  // namespace kolo
