// For any processor.

#include <cstddef>

namespace kolo::models {
namespace {
constexpr std::size_t vector_bytes = 16;
}
}  // namespace kolo::models

#include "models/compute/kernel_set.h"

namespace kolo::models {

constinit const KernelSet baseline_kernels = compiled_kernels;

}  // namespace kolo::models
