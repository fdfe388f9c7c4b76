#include "ops/gpu/cuda_kernels.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "ops/gpu/gpu.h"

namespace kolo {
namespace {

/// Items that are passed as kernel arguments.
struct PassedItems {
  PackItem items[most_items_passed];
};

template <class To, class From>
struct Convert {
  Conversion how;
  __device__ To operator()(From value) const { return converted<To, From>(value, how); }
};

/// One block per tile, or several where there are more tiles than a grid has blocks. `table` is null if the items were
/// passed.
template <class To, class From, class Function>
__global__ void __launch_bounds__(threads_of_tile)
    run_items(const PackItem* table, const __grid_constant__ PassedItems passed, std::int64_t count, std::int64_t tiles,
              Function convert) {
  const PackItem* const items = table ? table : passed.items;
  for (std::int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    pack_tile<To, From>(items, count, tile, tiles, static_cast<int>(threadIdx.x), threads_of_tile, convert);
  }
}

using CombinationKernel = void (*)(Combination);

template <class T>
__global__ void __launch_bounds__(threads_of_tile) run_combination(const __grid_constant__ Combination what) {
  const auto step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < what.count; i += step) {
    combine_element<T>(what, i);
  }
}

CombinationKernel combination_kernel(DType dtype) {
  switch (dtype) {
    case DType::f64: return run_combination<double>;
    case DType::f32: return run_combination<float>;
    case DType::f16: return run_combination<Float16>;
    case DType::bf16: return run_combination<BFloat16>;
    case DType::i64: return run_combination<std::int64_t>;
    case DType::i32: return run_combination<std::int32_t>;
    case DType::i16: return run_combination<std::int16_t>;
    case DType::i8: return run_combination<std::int8_t>;
    case DType::u64: return run_combination<std::uint64_t>;
    case DType::u32: return run_combination<std::uint32_t>;
    case DType::u16: return run_combination<std::uint16_t>;
    case DType::u8: return run_combination<std::uint8_t>;
    default: return run_combination<bool>;
  }
}

/// Launches a kernel of blocks of a tile's threads. What failed on this thread before, maybe the program's own, is not
/// taken for the launch's error.
template <class... Parameters, class... Arguments>
void launch(const char* what, void (*kernel)(Parameters...), std::int64_t blocks, cudaStream_t stream,
            Arguments&&... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(threads_of_tile);
  config.stream = stream;
  check_cuda(cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...), what);
}

template <class Kernel>
void load(Kernel* kernel) {
  cudaFuncAttributes attributes{};
  check_cuda(cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernel)), "cudaFuncGetAttributes");
}

}  // namespace

/// Throws Error{backend} with CUDA's text, the call's name and the caller's file and line unless `rc` is cudaSuccess.
void check_cuda(cudaError_t rc, const char* call, Where where) {
  if (rc == cudaSuccess) return;
  (void)cudaGetLastError();  // else the next call that looks for errors finds this one
  const std::string file(where.file);
  throw Error(ErrorCode::backend, std::string(call) + " failed (" + cudaGetErrorString(rc) + ") at " +
                                      file.substr(file.find_last_of('/') + 1) + ":" + std::to_string(where.line));
}

void launch_items(const PackItem* items, std::size_t count, std::int64_t tiles, const Conversion& how,
                  cudaStream_t stream) {
  PassedItems passed{};
  const bool passes = count <= most_items_passed;
  if (passes) std::memcpy(passed.items, items, count * sizeof(PackItem));
  const PackItem* const table = passes ? nullptr : items;
  const auto blocks = std::min<std::int64_t>(tiles, 1 << 30);
  constexpr auto name = "the launch of the pack kernel";
  const auto length = static_cast<std::int64_t>(count);
  if (how.is_copy()) {
    launch(name, run_items<unsigned char, unsigned char, Keep>, blocks, stream, table, passed, length, tiles, Keep{});
  } else {
    with_types(how, [&]<class To, class From>() {
      using How = Convert<To, From>;
      launch(name, run_items<To, From, How>, blocks, stream, table, passed, length, tiles, How{how});
    });
  }
}

void launch_combination(const Combination& what, cudaStream_t stream) {
  const std::int64_t blocks = std::min<std::int64_t>((what.count + threads_of_tile - 1) / threads_of_tile, 1 << 16);
  launch("the launch of the combining kernel", combination_kernel(what.dtype), blocks, stream, what);
}

void load_all_kernels() {
  load(run_items<unsigned char, unsigned char, Keep>);
  for (int from = 0; from < dtype_count; ++from) {
    load(combination_kernel(static_cast<DType>(from)));
    for (int to = 0; to < dtype_count; ++to) {
      const Conversion how{static_cast<DType>(from), static_cast<DType>(to)};
      if (!convertible(how.from, how.to)) continue;
      with_types(how, [&]<class To, class From>() { load(run_items<To, From, Convert<To, From>>); });
    }
  }
}

}  // namespace kolo
