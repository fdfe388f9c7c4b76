// For x86 processors with AVX-512: its foundation, its instructions on bytes, words and quadwords, and those on shorter
// vectors.

#include <immintrin.h>

#include <cstring>
#include <type_traits>

#include "ops/kernels/reduce_kernels.h"

#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")

namespace kolo {
namespace {
constexpr std::size_t vector_bytes = 64;
}
}  // namespace kolo

#include "ops/kernels/reduce_vectors.h"

namespace kolo {
namespace {

constexpr __mmask16 all_lanes = 0xffff;  // what the variants without a mask do; g++ 12 warns of these

Vector<float> widen_f16(HalfVector halves) {
  return reinterpret_cast<Vector<float>>(_mm512_maskz_cvtph_ps(all_lanes, reinterpret_cast<__m256i>(halves)));
}
HalfVector narrow_f16(Vector<float> values) {
  return without_payload(reinterpret_cast<HalfVector>(
      _mm512_maskz_cvtps_ph(all_lanes, reinterpret_cast<__m512>(values), _MM_FROUND_TO_NEAREST_INT)));
}

template <class Values>
void stream_vector(std::byte* to, Values values) {
  if constexpr (sizeof(values) == 64)
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to), reinterpret_cast<__m512i>(values));
  else
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to), reinterpret_cast<__m256i>(values));
}

}  // namespace
}  // namespace kolo

#include "ops/kernels/reduce_lanes.h"

namespace kolo {

ReduceKernel find_avx512_kernel(const Reduction& how) {
  return find_kernel(how);
}

}  // namespace kolo
