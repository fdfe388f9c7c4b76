#pragma once

#include "models/compute/compute.h"

namespace kolo::models {

/// FLOP/s of `compute`'s products of random numbers in a dtype of products: those of the best of some squares that suit
/// the device, a host's caches or a GPU's multiprocessors. Takes about `seconds`. Errors: ModelError if there is no
/// memory.
double peak_flops(Compute& compute, DType items, double seconds);

}  // namespace kolo::models
