// For x86 processors with AVX2 and fused multiply-adds.

#include <cstddef>

namespace kolo::models {
namespace {
constexpr std::size_t vector_bytes = 32;
}
}  // namespace kolo::models

#include "models/compute/kernel_set.h"

namespace kolo::models {

constinit const KernelSet avx2_kernels = compiled_kernels;

}  // namespace kolo::models
