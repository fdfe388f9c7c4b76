#include <array>

#include "ops/kernels/reduce_kernels.h"

namespace kolo {
namespace {

struct Usable {
  std::array<ReduceKernels, 3> kernels;
  std::size_t count = 0;

  Usable() : kernels{baseline_kernels, baseline_kernels, baseline_kernels} {
    const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c");
    if (avx512) kernels[count++] = avx512_kernels;
    if (avx2) kernels[count++] = avx2_kernels;
    kernels[count++] = baseline_kernels;
  }
};

}  // namespace

std::span<const ReduceKernels> reduce_kernels() {
  static const Usable usable;
  return std::span(usable.kernels).first(usable.count);
}

}  // namespace kolo
