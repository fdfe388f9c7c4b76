#include "models/compute/kernels.h"

namespace kolo::models {

const KernelSet& kernel_set(detail::InstructionSet instructions) {
  if constexpr (detail::on_x86) {
    if (instructions == detail::InstructionSet::avx512) return avx512_kernels;
    if (instructions == detail::InstructionSet::avx2) return avx2_kernels;
  }
  return baseline_kernels;
}

const Kernels& kernels(Precision precision) {
  const KernelSet& set = kernel_set(detail::instruction_set());
  switch (precision) {
    case Precision::bf16: return set.bf16;
    case Precision::f16: return set.f16;
    default: return set.f32;
  }
}

}  // namespace kolo::models
