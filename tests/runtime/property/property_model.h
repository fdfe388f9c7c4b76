#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <kolo/backend.h>
#include <kolo/tensor.h>

#include "tests/runtime/property/property_program.h"

// The serial model: what every rank passes to an operation, and what it must have afterwards.

namespace kolo::testing {

using Bytes = std::vector<std::byte>;

/// Whether the rank's input is read, and its output written.
bool reads(const PropertyOp& op, int rank);
bool writes(const PropertyOp& op, int rank);

std::int64_t rows_in(const PropertyOp& op, const PropertyTensor& tensor, int rank);
std::int64_t rows_out(const PropertyOp& op, const PropertyTensor& tensor, int rank);
Shape shape_in(const PropertyOp& op, const PropertyTensor& tensor, int rank);
Shape shape_out(const PropertyOp& op, const PropertyTensor& tensor, int rank);

/// Where the input lies in an output that it is part of (all_gather, gather), or the output in the input
/// (reduce_scatter, scatter).
std::int64_t row_in_place(const PropertyOp& op, const PropertyTensor& tensor, int rank);

/// Rows that come from each rank.
BlockRows rows_received(const PropertyOp& op, const PropertyTensor& tensor, int rank);

/// Small whole numbers, so that every result is exact in every type.
Bytes input(const PropertyOp& op, std::size_t tensor, int rank);

/// Whether `result` is what the rank must have where it writes; unless `exact`, ranks may have added floats in any
/// order and type.
bool is_result(const PropertyOp& op, std::size_t tensor, int rank, const std::byte* result, bool exact = true);

/// What the rank passes to the calls that move objects.
std::string object(const PropertyOp& op, int rank);

}  // namespace kolo::testing
