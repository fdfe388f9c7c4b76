#include "models/compute/kernels.h"

namespace kolo::models {

const KernelSet& best_kernels() {
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (avx512) return avx512_kernels;
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  return avx2 ? avx2_kernels : baseline_kernels;
}

}  // namespace kolo::models
