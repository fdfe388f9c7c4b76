#include "models/compute/kernels.h"

#include "models/compute/attention_scratch.h"

namespace kolo::models {

std::int64_t attention_scratch(std::int64_t positions, std::int64_t width) {
  return 2 * scratch::panel_floats(positions, width) + 2 * scratch::score_floats + scratch::row_block * width;
}

const Kernels& kernels(Precision precision) {
  const KernelSet& set = best_kernels();
  switch (precision) {
    case Precision::bf16: return set.bf16;
    case Precision::f16: return set.f16;
    default: return set.f32;
  }
}

}  // namespace kolo::models
