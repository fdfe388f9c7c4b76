// The only file that knows the CUDA runtime: memory, copies, and launches of kernels.

#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <mma.h>

#include <algorithm>
#include <memory>
#include <string>
#include <type_traits>

#include "models/compute/cuda/device.h"
#include "models/compute/cuda/products.h"
#include "models/util/error.h"

namespace kolo::models::cuda {
namespace {

void check(cudaError_t rc, const char* call) {
  if (rc == cudaSuccess) return;
  (void)cudaGetLastError();  // else the next call that looks for errors finds this one
  throw ModelError(std::string(call) + " failed (" + cudaGetErrorString(rc) + ")");
}

/// The threads of a block; see team.h.
class Team {
 public:
  template <class T, int n>
  class Own {
   public:
    __device__ T (&of(int))[static_cast<std::size_t>(n)] { return numbers_; }

   private:
    T numbers_[static_cast<std::size_t>(n)];
  };

  template <int n>
  class Accumulators {
   public:
    __device__ void zero(int) {
      for (int i = 0; i < n; ++i) nvcuda::wmma::fill_fragment(sums_[i], 0.0f);
    }
    __device__ void store(int, int i, float* to, int stride) {
      nvcuda::wmma::store_matrix_sync(to, sums_[i], stride, nvcuda::wmma::mem_row_major);
    }
    /// Fragments of one kind have their elements in the same places.
    __device__ void scale(int, int i, const float* factors, int stride) {
      Square factor;
      nvcuda::wmma::load_matrix_sync(factor, factors, stride, nvcuda::wmma::mem_row_major);
      for (int e = 0; e < factor.num_elements; ++e) sums_[i].x[e] *= factor.x[e];
    }
    template <bool a_by_columns, bool b_by_columns>
    __device__ void multiply(int, int i, const std::uint16_t* a, int a_stride, const std::uint16_t* b, int b_stride) {
      nvcuda::wmma::fragment<nvcuda::wmma::matrix_a, 16, 16, 16, __nv_bfloat16, Layout<a_by_columns>> left;
      nvcuda::wmma::fragment<nvcuda::wmma::matrix_b, 16, 16, 16, __nv_bfloat16, Layout<b_by_columns>> right;
      nvcuda::wmma::load_matrix_sync(left, reinterpret_cast<const __nv_bfloat16*>(a), a_stride);
      nvcuda::wmma::load_matrix_sync(right, reinterpret_cast<const __nv_bfloat16*>(b), b_stride);
      nvcuda::wmma::mma_sync(sums_[i], left, right, sums_[i]);
    }

   private:
    template <bool by_columns>
    using Layout = std::conditional_t<by_columns, nvcuda::wmma::col_major, nvcuda::wmma::row_major>;
    using Square = nvcuda::wmma::fragment<nvcuda::wmma::accumulator, 16, 16, 16, float>;

    Square sums_[n];
  };

  __device__ explicit Team(float* shared) : shared_(shared) {}

  __device__ int threads() const { return static_cast<int>(blockDim.x); }
  __device__ float* shared() const { return shared_; }

  template <class Body>
  __device__ void run(Body body) const {
    body(static_cast<int>(threadIdx.x));
    __syncthreads();
  }

  template <class Body>
  __device__ void warps(Body body) const {
    run([&](int thread) { body(thread / 32); });
  }

  template <class T, class Value, class Join>
  __device__ T reduce(Value value, Join join) const {
    constexpr int warp = 32;
    __shared__ T of_warps[warp];
    T mine = value(static_cast<int>(threadIdx.x));
    for (int step = warp / 2; step > 0; step /= 2) mine = join(mine, __shfl_xor_sync(~0u, mine, step));
    if (threadIdx.x % warp == 0) of_warps[threadIdx.x / warp] = mine;
    __syncthreads();
    T all = of_warps[0];
    for (int i = 1; i < threads() / warp; ++i) all = join(all, of_warps[i]);
    __syncthreads();  // the next one writes there
    return all;
  }

 private:
  float* shared_;
};

template <class K>
__global__ void __launch_bounds__(K::threads) run_kernel(const __grid_constant__ K kernel) {
  extern __shared__ __align__(128) double shared[];  // as squares of tensor cores must be
  kernel(Team(reinterpret_cast<float*>(shared)), static_cast<Index>(blockIdx.x));
}

template <class K>
void launch_kernel(const K& kernel) {
  const Index blocks = kernel.blocks();
  if (blocks == 0) return;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(K::threads);
  config.dynamicSmemBytes = static_cast<std::size_t>(kernel.shared_floats()) * sizeof(float);
  if (config.dynamicSmemBytes > 32 << 10) {
    check(cudaFuncSetAttribute(run_kernel<K>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(config.dynamicSmemBytes)),
          "cudaFuncSetAttribute");
  }
  check(cudaLaunchKernelEx(&config, run_kernel<K>, kernel), "the launch of a kernel of a model");
}

class CudaDevice final : public ComputeDevice {
 public:
  explicit CudaDevice(int index) : index_(index) { select(); }
  ~CudaDevice() override {
    library_.reset();
    release(workspace_);
  }
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  void* allocate(std::size_t bytes) override {
    select();
    void* memory = nullptr;
    const cudaError_t rc = cudaMalloc(&memory, std::max<std::size_t>(bytes, 1));
    if (rc != cudaErrorMemoryAllocation)
      check(rc, "cudaMalloc");
    else
      (void)cudaGetLastError();
    return memory;
  }
  void release(void* memory) noexcept override { (void)cudaFree(memory); }
  void copy(void* to, const void* from, std::size_t bytes) override {
    select();
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, nullptr), "cudaMemcpyAsync");
  }
  void wait() override {
    select();
    check(cudaStreamSynchronize(nullptr), "cudaStreamSynchronize");
  }

  void launch(const Kernel& kernel) override {
    select();
    std::visit([](const auto& one) { launch_kernel(one); }, kernel);
  }
  bool multiply(const PlainProduct& product) override {
    select();
    if (workspace_ == nullptr) {
      workspace_ = allocate(workspace_bytes);
      if (workspace_ == nullptr) throw ModelError("there is no memory for matrix products on the GPU (32 MiB)");
      library_ = open_cublas_lt(workspace_);
    }
    return library_ != nullptr && library_->multiply(product);
  }

 private:
  /// For the calls of this thread. That of before is not selected again: to select one may take memory of it.
  void select() const { check(cudaSetDevice(index_), "cudaSetDevice"); }

  int index_;
  void* workspace_ = nullptr;
  std::unique_ptr<ProductLibrary> library_;
};

}  // namespace

std::unique_ptr<ComputeDevice> open_device(int index) {
  int found = 0;
  if (cudaGetDeviceCount(&found) != cudaSuccess) {
    (void)cudaGetLastError();
    found = 0;  // no driver, or no GPU
  }
  if (index < 0 || index >= found) {
    throw ModelError("models cannot run on GPU " + std::to_string(index) + " (this process sees " +
                     std::to_string(found) + "); look at nvidia-smi and CUDA_VISIBLE_DEVICES, or leave the device out");
  }
  return std::make_unique<CudaDevice>(index);
}

}  // namespace kolo::models::cuda
