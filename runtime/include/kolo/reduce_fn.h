#pragma once

#include <functional>

#include <kolo/tensor.h>

namespace kolo {

/// Sums a tensor over all ranks, in-place and blocking, for layers that need a sum in the middle of a pass (sync batch
/// norm, tensor parallelism). Every rank calls it for the same tensors in the same order.
using ReduceFn = std::function<void(Tensor)>;

}  // namespace kolo
