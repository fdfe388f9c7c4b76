#pragma once

#include <cstdint>

namespace kolo::detail {

/// The instruction sets that files are compiled for; each includes the ones before it. baseline: any processor of the
/// architecture; avx2: with F16C and FMA; avx512: F, BW, DQ and VL.
enum class InstructionSet : std::uint8_t { baseline, avx2, avx512 };

#if defined(__x86_64__)

inline constexpr bool on_x86 = true;

/// The best instruction set of this processor. Costs a few loads. F16C comes with AVX2 and FMA.
inline InstructionSet instruction_set() {
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  return avx512 ? InstructionSet::avx512 : avx2 ? InstructionSet::avx2 : InstructionSet::baseline;
}

#else

inline constexpr bool on_x86 = false;
inline InstructionSet instruction_set() {
  return InstructionSet::baseline;
}

#endif

}  // namespace kolo::detail
