#include "models/compute/kernels.h"

namespace kolo::models {

const KernelSet& best_kernels() {
  return baseline_kernels;
}

}  // namespace kolo::models
