#pragma once

#include <cstddef>

#include <kolo/detail/cpu.h>

#include "ops/kernels/reduce.h"

namespace kolo {

/// Where a kernel writes its results: to one place, or the same to two. Either may be null, not both.
struct ReduceOutputs {
  void* first = nullptr;
  void* second = nullptr;
  bool streams_first = false;  ///< written past the cache; begins at a cache line
  bool streams_second = false;
};

/// Combines element i of all `ranks` sources, as reduce() says, into element i of the outputs, which may be sources.
/// The sources' elements begin `at` bytes after their addresses.
using ReduceKernel = void (*)(const Reduction& how, const void* const* sources, std::size_t ranks, std::size_t at,
                              const ReduceOutputs& outputs, std::size_t count);

/// The kernel for a reduction, compiled for one instruction set; all sets give the same bits (but of an operation on
/// two NaNs, of which any may be the result). Null where the accumulator is wider than the elements: wide_kernel().
using FindReduceKernel = ReduceKernel (*)(const Reduction& how);

ReduceKernel find_baseline_kernel(const Reduction& how);
ReduceKernel find_avx2_kernel(const Reduction& how);
ReduceKernel find_avx512_kernel(const Reduction& how);
FindReduceKernel reduce_kernels(detail::InstructionSet instructions);

/// Integers that are averaged or scaled, which takes 64 or 128 bits.
ReduceKernel wide_kernel(const Reduction& how);

}  // namespace kolo
