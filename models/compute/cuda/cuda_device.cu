// The only file that knows the CUDA runtime: memory, copies, and launches of kernels.

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>

#include "models/compute/cuda/attentions.h"
#include "models/compute/cuda/device.h"
#include "models/compute/cuda/fragments.h"
#include "models/compute/cuda/products.h"
#include "models/util/error.h"

namespace kolo::models::cuda {
namespace {

void check(cudaError_t rc, const char* call) {
  if (rc == cudaSuccess) return;
  (void)cudaGetLastError();  // else the next call that looks for errors finds this one
  throw ModelError(std::string(call) + " failed (" + cudaGetErrorString(rc) + ")");
}

/// Of a warp; see fragments.h.
struct Lane {
  static __device__ int index() { return static_cast<int>(threadIdx.x) % 32; }
  static __device__ float exchanged(float x, int distance) { return __shfl_xor_sync(~0u, x, distance); }
  static __device__ std::uint32_t shared_address(const Half* at) {
    return static_cast<std::uint32_t>(__cvta_generic_to_shared(at));
  }
  template <bool transposed>
  static __device__ void load(std::uint32_t (&to)[4], const Half* line) {
    if constexpr (transposed) {
      asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                   : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                   : "r"(shared_address(line)));
    } else {
      asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                   : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                   : "r"(shared_address(line)));
    }
  }
  static __device__ void multiply_add(float (&sums)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                      std::uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
  static __device__ std::uint32_t rounded(float first, float second) {
    const __nv_bfloat162 both = __floats2bfloat162_rn(first, second);
    return *reinterpret_cast<const std::uint32_t*>(&both);
  }
};

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

  template <int m>
  using Warp = Fragments<Lane, m>;

  static __device__ std::uint32_t halves(float first, float second) { return Lane::rounded(first, second); }
  static __device__ float exp2(float x) {
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
  }
  static __device__ float reciprocal(float x) {
    float result;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
  }

  static __device__ void fetch(Half* to, const Half* from, bool there) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(Lane::shared_address(to)), "l"(from),
                 "r"(there ? 16 : 0)
                 : "memory");
  }
  static __device__ void end_fetch() { asm volatile("cp.async.commit_group;" ::: "memory"); }
  template <int last>
  static __device__ void await_fetched() {
    asm volatile("cp.async.wait_group %0;" ::"n"(last) : "memory");
    __syncthreads();
  }

  __device__ explicit Team(float* shared) : shared_(shared) {}

  __device__ int threads() const { return static_cast<int>(blockDim.x); }
  __device__ float* shared() const { return shared_; }

  template <class Body>
  __device__ void start(Body body) const {
    body(static_cast<int>(threadIdx.x));
  }
  template <class Body>
  __device__ void run(Body body) const {
    start(body);
    __syncthreads();
  }
  template <class Body>
  __device__ void warps(Body body) const {
    body(static_cast<int>(threadIdx.x) / 32);
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

/// Blocks that a multiprocessor is to have room for, in its registers.
template <class K>
constexpr int together() {
  if constexpr (requires { K::together; }) return K::together;
  return 1;
}

template <class K>
__global__ void __launch_bounds__(K::threads, together<K>()) run_kernel(const __grid_constant__ K kernel) {
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

class Event final : public Point {
 public:
  explicit Event(cudaStream_t stream) {
    check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "cudaEventCreateWithFlags");
    if (const cudaError_t rc = cudaEventRecord(event_, stream); rc != cudaSuccess) {
      (void)cudaEventDestroy(event_);
      check(rc, "cudaEventRecord");
    }
  }
  ~Event() override { (void)cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  void wait() override { check(cudaEventSynchronize(event_), "cudaEventSynchronize"); }
  void hold_back(cudaStream_t stream) const { check(cudaStreamWaitEvent(stream, event_), "cudaStreamWaitEvent"); }

 private:
  cudaEvent_t event_{};
};

class CudaDevice final : public ComputeDevice {
 public:
  explicit CudaDevice(int index) : index_(index) { select(); }
  ~CudaDevice() override {
    attention_.reset();
    products_.reset();
    release(workspace_);
    if (beside_ != nullptr) (void)cudaStreamDestroy(beside_);
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
  std::unique_ptr<Point> copy_beside(void* to, const void* pinned, std::size_t bytes, Point& behind) override {
    select();
    if (beside_ == nullptr)
      check(cudaStreamCreateWithFlags(&beside_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    static_cast<Event&>(behind).hold_back(beside_);
    check(cudaMemcpyAsync(to, pinned, bytes, cudaMemcpyHostToDevice, beside_), "cudaMemcpyAsync");
    auto copied = std::make_unique<Event>(beside_);
    copied->hold_back(nullptr);
    return copied;
  }
  void wait() override {
    select();
    check(cudaStreamSynchronize(nullptr), "cudaStreamSynchronize");
  }
  std::unique_ptr<Point> mark() override {
    select();
    return std::make_unique<Event>(nullptr);
  }
  void* allocate_pinned(std::size_t bytes) override {
    select();
    void* memory = nullptr;
    if (cudaMallocHost(&memory, bytes) == cudaSuccess) return memory;
    (void)cudaGetLastError();
    return nullptr;
  }
  void release_pinned(void* memory) noexcept override { (void)cudaFreeHost(memory); }

  void launch(const Kernel& kernel) override {
    select();
    std::visit([](const auto& one) { launch_kernel(one); }, kernel);
  }
  bool multiply(const PlainProduct& product) override {
    select();
    if (!products_) products_ = open_cublas_lt(workspace());
    return *products_ != nullptr && (*products_)->multiply(product);
  }
  AttentionLibrary* attention() override {
    select();
    if (!attention_) attention_ = has_attention_library() ? open_cudnn(workspace()) : nullptr;
    return attention_->get();
  }

 private:
  /// For the calls of this thread. That of before is not selected again: to select one may take memory of it.
  void select() const { check(cudaSetDevice(index_), "cudaSetDevice"); }
  void* workspace() {
    if (workspace_ == nullptr) workspace_ = allocate(workspace_bytes);
    if (workspace_ == nullptr) throw ModelError("there is no memory for matrix products on the GPU (32 MiB)");
    return workspace_;
  }

  int index_;
  cudaStream_t beside_ = nullptr;  // of copies that wait for no kernel
  void* workspace_ = nullptr;      // of all libraries: what they do runs one after the other
  // None until they are asked for; null where they are not installed.
  std::optional<std::unique_ptr<ProductLibrary>> products_;
  std::optional<std::unique_ptr<AttentionLibrary>> attention_;
};

}  // namespace

/// Of Hopper GPUs: that cuDNN's attention gives the same bits in every run has been seen there only.
bool has_attention_library() {
  int index = 0, major = 0;
  check(cudaGetDevice(&index), "cudaGetDevice");
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, index), "cudaDeviceGetAttribute");
  return major == 9 && cudnn_installed();
}

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
