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
  return widen_f16_plain(halves);
}
HalfVector narrow_f16(Vector<float> values) {
  return narrow_f16_plain(values);
}

template <class Values>
void stream_vector(std::byte* to, Values values) {
  std::memcpy(to, &values, sizeof(values));
}
}  // namespace
}  // namespace kolo

#include "ops/kernels/reduce_lanes.h"

namespace kolo {

constinit const ReduceKernels baseline_kernels{"baseline", find_kernel};

}  // namespace kolo
