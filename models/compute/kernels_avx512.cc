// For x86 processors with AVX-512.

#include <cstddef>

namespace kolo::models {
namespace {
constexpr std::size_t vector_bytes = 64;
}
}  // namespace kolo::models

#include "models/compute/kernel_set.h"

namespace kolo::models {

constinit const KernelSet avx512_kernels = compiled_kernels;

}  // namespace kolo::models
