// For x86 processors with AVX2 and F16C.

#include <immintrin.h>

#include <cstring>
#include <type_traits>

#include "ops/kernels/reduce_kernels.h"

#pragma GCC target("avx2,f16c")

namespace kolo {
namespace {
constexpr std::size_t vector_bytes = 32;
}
}  // namespace kolo

#include "ops/kernels/reduce_vectors.h"

namespace kolo {
namespace {

Vector<float> widen_f16(HalfVector halves) {
  return reinterpret_cast<Vector<float>>(_mm256_cvtph_ps(reinterpret_cast<__m128i>(halves)));
}
HalfVector narrow_f16(Vector<float> values) {
  return without_payload(
      reinterpret_cast<HalfVector>(_mm256_cvtps_ph(reinterpret_cast<__m256>(values), _MM_FROUND_TO_NEAREST_INT)));
}

template <class Values>
void stream_vector(std::byte* to, Values values) {
  if constexpr (sizeof(values) == 32)
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to), reinterpret_cast<__m256i>(values));
  else
    _mm_stream_si128(reinterpret_cast<__m128i*>(to), reinterpret_cast<__m128i>(values));
}

}  // namespace
}  // namespace kolo

#include "ops/kernels/reduce_lanes.h"

namespace kolo {

ReduceKernel find_avx2_kernel(const Reduction& how) {
  return find_kernel(how);
}

}  // namespace kolo
