#include <cblas.h>

#include "models/compute/gemm.h"

namespace kolo::models {

void gemm(const GemmShape& shape, const float* a, const float* b, float* c) {
  // Once per process: ranks share the cores, and sums must not depend on the number of threads.
  [[maybe_unused]] static const bool one_thread = (openblas_set_num_threads(1), true);
  const auto [m, n, k, transpose_a, transpose_b, beta] = shape;
  cblas_sgemm(CblasRowMajor, transpose_a ? CblasTrans : CblasNoTrans, transpose_b ? CblasTrans : CblasNoTrans,
              static_cast<blasint>(m), static_cast<blasint>(n), static_cast<blasint>(k), 1.0f, a,
              static_cast<blasint>(transpose_a ? m : k), b, static_cast<blasint>(transpose_b ? k : n), beta, c,
              static_cast<blasint>(n));
}

bool gemm_bf16(const GemmShape&, const std::uint16_t*, const std::uint16_t*, float*) {
  return false;
}

std::string_view gemm_backend() {
  return "openblas";
}

}  // namespace kolo::models
