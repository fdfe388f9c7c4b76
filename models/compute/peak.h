#pragma once

namespace kolo::models {

/// FLOP/s of single-precision matrix products on the calling thread: those of the best of some squares that fit the
/// caches. Takes at most `seconds`, but for the smallest square. Errors: as gemm().
double peak_flops(double seconds);

}  // namespace kolo::models
