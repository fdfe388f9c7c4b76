#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include <kolo/error.h>

#include "ops/gpu/pack_items.h"

namespace kolo {

/// Throws Error{backend} with CUDA's text, the call's name and the caller's file and line unless `rc` is cudaSuccess.
void check_cuda(cudaError_t rc, const char* call, Where where = Where::here());

/// Of the current GPU: see Gpu::pack() and combine().
void launch_items(const PackItem* items, std::size_t count, std::int64_t tiles, const Conversion& how,
                  cudaStream_t stream);
void launch_combination(const Combination& what, cudaStream_t stream);

/// Loads what these launch.
void load_all_kernels();

}  // namespace kolo
