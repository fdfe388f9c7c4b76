// For any processor of the architecture that is built for.

#include <cstddef>

#include "ops/kernels/reduce_kernels.h"

namespace kolo {
namespace {
constexpr std::size_t vector_bytes = 16;
}
}  // namespace kolo

#include "ops/kernels/reduce_vectors.h"

namespace kolo {
namespace {
Vector<float> widen_f16(HalfVector halves) {
  return detail::widen_f16<Vector<float>>(__builtin_convertvector(halves, Bits));
}
HalfVector narrow_f16(Vector<float> values) {
  return __builtin_convertvector(detail::narrow_f16<Bits>(values), HalfVector);
}

template <class Values>
void stream_vector(std::byte* to, Values values) {
  std::memcpy(to, &values, sizeof(values));
}
}  // namespace
}  // namespace kolo

#include "ops/kernels/reduce_lanes.h"

namespace kolo {

ReduceKernel find_baseline_kernel(const Reduction& how) {
  return find_kernel(how);
}

}  // namespace kolo
