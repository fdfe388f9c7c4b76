#include "models/compute/kernels.h"

#include "models/compute/attention_scratch.h"

namespace kolo::models {

std::int64_t attention_scratch(std::int64_t positions, std::int64_t width) {
  return 2 * scratch::panel_floats(positions, width) + 2 * scratch::score_floats + scratch::row_block * width;
}

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
