#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "ops/kernels/reduce.h"

namespace kolo {

/// Where a kernel writes its results: to one place, or the same to two. Either may be null, not both.
struct ReduceOutputs {
  void* first = nullptr;
  void* second = nullptr;
  bool streams_first = false;  ///< it had better be written past the cache, and begins at a cache line
  bool streams_second = false;
};

/// Combines element i of all `ranks` sources, as reduce() says, into element i of the outputs, which may be sources.
/// The sources' elements begin `at` bytes after their addresses.
using ReduceKernel = void (*)(const Reduction& how, const void* const* sources, std::size_t ranks, std::size_t at,
                              const ReduceOutputs& outputs, std::size_t count);

/// The kernels that were compiled for one kind of processor; all kinds give the same bits (but of an operation on two
/// NaNs, of which any may be the result).
struct ReduceKernels {
  std::string_view name;
  ReduceKernel (*find)(
      const Reduction& how);  ///< null if it takes a wider accumulator than the elements: wide_kernel()
};

/// Those that this processor can run, the fastest first; the last runs on any.
std::span<const ReduceKernels> reduce_kernels();

/// Integers that are averaged or scaled, which takes 64 or 128 bits.
ReduceKernel wide_kernel(const Reduction& how);

extern const ReduceKernels baseline_kernels, avx2_kernels, avx512_kernels;

}  // namespace kolo
