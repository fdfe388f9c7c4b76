#pragma once

#include <cstddef>
#include <cstdint>

#include <kolo/op.h>

namespace kolo::bench {

/// The kind of values in the ranks' inputs.
enum class ValueKind {
  exact,  ///< a reduction gives the same bits in any order
  full,   ///< full mantissas: a sum's bits depend on the order
};

/// Values that depend on seed, rank and index only, so that any rank knows those of all.
struct Values {
  OpKind kind = OpKind::all_reduce;
  ReduceOp op = ReduceOp::sum;
  DType dtype = DType::f32;
  int ranks = 1;
  ValueKind value_kind = ValueKind::exact;
  std::uint64_t seed = 0;

  /// Writes `rank`'s input from element `first` on.
  void write(int rank, std::int64_t first, std::int64_t count, std::byte* to) const;
};

/// The largest magnitude of `exact` floats that are added.
std::int64_t largest_exact(DType dtype, int ranks);

}  // namespace kolo::bench
