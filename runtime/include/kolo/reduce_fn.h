#pragma once

#include <functional>

#include <kolo/tensor.h>

namespace kolo {

/// Sums a tensor over all ranks, in-place, for layers that need a sum in the middle of a pass (sync batch norm, tensor
/// parallelism): what is computed from then on finds the sum. Every rank calls it for the same tensors in the same
/// order.
using ReduceFn = std::function<void(Tensor)>;

}  // namespace kolo
