#include <cuda_runtime.h>
#include <dlfcn.h>
#include <nvtx3/nvToolsExt.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <cstring>
#include <fstream>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "ops/gpu/gpu.h"

namespace kolo {
namespace {

/// Throws Error{backend} with CUDA's text, the call's name and the caller's file and line unless `rc` is cudaSuccess.
void check_cuda(cudaError_t rc, const char* call, Where where = Where::here()) {
  if (rc == cudaSuccess) return;
  (void)cudaGetLastError();  // else the next call that looks for errors finds this one
  const std::string file(where.file);
  throw Error(ErrorCode::backend, std::string(call) + " failed (" + cudaGetErrorString(rc) + ") at " +
                                      file.substr(file.find_last_of('/') + 1) + ":" + std::to_string(where.line));
}

constexpr auto raw = [](void* stream) { return static_cast<cudaStream_t>(stream); };

/// Whether this process has a context on a device, or may have one.
bool has_context(int index) {
  using GetState = int (*)(int device, unsigned* flags, int* active);
  static const auto get_state = [] {
    void* const driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);  // the runtime has loaded it
    return driver ? reinterpret_cast<GetState>(dlsym(driver, "cuDevicePrimaryCtxGetState")) : nullptr;
  }();
  unsigned flags = 0;
  int active = 1;
  return !get_state || get_state(index, &flags, &active) != 0 || active != 0;
}

/// Selects the device that was current before, unless this process has no context on it: selecting it would make one,
/// which takes hundreds of MiB, and every rank of a node would make one on device 0.
void select_device_again(int before) noexcept {
  if (has_context(before)) (void)cudaSetDevice(before);
}

/// Selects a device for the calls of this scope, and then the one that the thread had selected before.
class CudaDeviceGuard final {
 public:
  explicit CudaDeviceGuard(int index) : index_(index) {
    check_cuda(cudaGetDevice(&before_), "cudaGetDevice");
    if (before_ != index_) check_cuda(cudaSetDevice(index_), "cudaSetDevice");
  }
  ~CudaDeviceGuard() {
    if (before_ != index_) select_device_again(before_);
  }
  CudaDeviceGuard(const CudaDeviceGuard&) = delete;
  CudaDeviceGuard& operator=(const CudaDeviceGuard&) = delete;

 private:
  int index_;
  int before_ = 0;
};

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

template <class T>
__global__ void __launch_bounds__(threads_of_tile) run_combination(const __grid_constant__ Combination what) {
  const auto step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < what.count; i += step) {
    combine_element<T>(what, i);
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

template <class T>
void launch_combination(const Combination& what, cudaStream_t stream) {
  const std::int64_t blocks = std::min<std::int64_t>((what.count + threads_of_tile - 1) / threads_of_tile, 1 << 16);
  launch("the launch of the combining kernel", run_combination<T>, blocks, stream, what);
}

void launch_combination(const Combination& what, cudaStream_t stream, DType dtype) {
  switch (dtype) {
    case DType::f64: return launch_combination<double>(what, stream);
    case DType::f32: return launch_combination<float>(what, stream);
    case DType::f16: return launch_combination<Float16>(what, stream);
    case DType::bf16: return launch_combination<BFloat16>(what, stream);
    case DType::i64: return launch_combination<std::int64_t>(what, stream);
    case DType::i32: return launch_combination<std::int32_t>(what, stream);
    case DType::i16: return launch_combination<std::int16_t>(what, stream);
    case DType::i8: return launch_combination<std::int8_t>(what, stream);
    case DType::u64: return launch_combination<std::uint64_t>(what, stream);
    case DType::u32: return launch_combination<std::uint32_t>(what, stream);
    case DType::u16: return launch_combination<std::uint16_t>(what, stream);
    case DType::u8: return launch_combination<std::uint8_t>(what, stream);
    case DType::boolean: return launch_combination<bool>(what, stream);
  }
}

/// Events of one GPU, used again and again; never destroyed.
class EventPool final {
 public:
  EventPool(int index, unsigned flags) : index_(index), flags_(flags) {}

  cudaEvent_t take() {
    {
      const std::lock_guard lock(mutex_);
      if (!free_.empty()) {
        const cudaEvent_t event = free_.back();
        free_.pop_back();
        return event;
      }
    }
    const CudaDeviceGuard selected(index_);
    cudaEvent_t event = nullptr;
    check_cuda(cudaEventCreateWithFlags(&event, flags_), "cudaEventCreateWithFlags");
    return event;
  }
  void give_back(cudaEvent_t event) {
    const std::lock_guard lock(mutex_);
    free_.push_back(event);
  }

 private:
  int index_;
  unsigned flags_;
  std::mutex mutex_;
  std::vector<cudaEvent_t> free_;
};

struct PooledEventTraits {
  struct Raw {
    EventPool* pool = nullptr;
    cudaEvent_t event = nullptr;
    bool operator==(const Raw&) const = default;
  };
  static Raw null() noexcept { return {}; }
  static void destroy(const Raw& raw) noexcept { raw.pool->give_back(raw.event); }
};

class CudaPoint final : public DevicePoint {
 public:
  CudaPoint(int index, EventPool& pool, cudaStream_t stream) : index_(index), event_({&pool, pool.take()}) {
    const CudaDeviceGuard selected(index_);
    check_cuda(cudaEventRecord(event(), stream), "cudaEventRecord");
  }

  void order(void* stream) const override {
    const CudaDeviceGuard selected(index_);
    check_cuda(cudaStreamWaitEvent(raw(stream), event(), 0), "cudaStreamWaitEvent");
  }
  bool passed() const override {
    const CudaDeviceGuard selected(index_);  // a thread that never had one would get a context on device 0
    const cudaError_t rc = cudaEventQuery(event());
    if (rc == cudaErrorNotReady) {
      (void)cudaGetLastError();  // it is kept as if it were an error
      return false;
    }
    check_cuda(rc, "cudaEventQuery");
    return true;
  }
  cudaEvent_t event() const { return event_.get().event; }

 private:
  int index_;
  Unique<PooledEventTraits> event_;
};

int numa_node_of(std::string bus) {
  std::ranges::transform(bus, bus.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  std::ifstream file("/sys/bus/pci/devices/" + bus + "/numa_node");
  int node = -1;
  return file >> node ? node : -1;
}

class CudaGpu final : public Gpu {
 public:
  explicit CudaGpu(int index)
      : index_(index), events_(index, cudaEventDisableTiming), timed_events_(index, cudaEventDefault) {}

  int index() const override { return index_; }

  GpuFacts facts() const override {
    cudaDeviceProp properties{};
    check_cuda(cudaGetDeviceProperties(&properties, index_), "cudaGetDeviceProperties");
    char bus[32] = {};
    check_cuda(cudaDeviceGetPCIBusId(bus, sizeof(bus), index_), "cudaDeviceGetPCIBusId");
    return {properties.name, bus, numa_node_of(bus), properties.totalGlobalMem};
  }

  GpuMemoryUse memory_use() const override {
    const CudaDeviceGuard selected(index_);
    std::size_t free = 0, total = 0;
    check_cuda(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    const std::size_t used = total - free;
    std::size_t peak = peak_;
    while (peak < used && !peak_.compare_exchange_weak(peak, used)) {
    }
    return {total, used, std::max(peak, used)};
  }

  int select() override {
    int before = 0;
    check_cuda(cudaGetDevice(&before), "cudaGetDevice");
    check_cuda(cudaSetDevice(index_), "cudaSetDevice");
    return before;
  }
  void select_again(int before) noexcept override {
    if (before != index_) select_device_again(before);
  }

  void* make_stream(StreamPriority priority) override {
    const CudaDeviceGuard selected(index_);
    int least = 0, greatest = 0;
    check_cuda(cudaDeviceGetStreamPriorityRange(&least, &greatest), "cudaDeviceGetStreamPriorityRange");
    const int high = std::min(greatest + 1, least);  // the greatest is the lowest number
    const int level = priority == StreamPriority::highest ? greatest : priority == StreamPriority::high ? high : least;
    cudaStream_t stream = nullptr;
    check_cuda(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, level), "cudaStreamCreateWithPriority");
    return stream;
  }
  void destroy_stream(void* stream) noexcept override { (void)cudaStreamDestroy(raw(stream)); }

  std::shared_ptr<const DevicePoint> mark(void* stream, bool timed) override {
    return std::make_shared<CudaPoint>(index_, timed ? timed_events_ : events_, raw(stream));
  }
  double seconds_between(const DevicePoint& from, const DevicePoint& to) override {
    float milliseconds = 0;
    check_cuda(cudaEventElapsedTime(&milliseconds, dynamic_cast<const CudaPoint&>(from).event(),
                                    dynamic_cast<const CudaPoint&>(to).event()),
               "cudaEventElapsedTime");
    return static_cast<double>(milliseconds) / 1000;
  }

  void copy(void* to, const void* from, std::size_t bytes, void* stream) override {
    const CudaDeviceGuard selected(index_);
    check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, raw(stream)), "cudaMemcpyAsync");
  }
  void clear(void* data, std::size_t bytes, void* stream) override {
    const CudaDeviceGuard selected(index_);
    check_cuda(cudaMemsetAsync(data, 0, bytes, raw(stream)), "cudaMemsetAsync");
  }
  void copy(void* to, const void* from, std::size_t bytes) override {
    copy(to, from, bytes, own_stream());
    finish_own_stream();
  }
  void clear(void* data, std::size_t bytes) override {
    clear(data, bytes, own_stream());
    finish_own_stream();
  }

  void pack(const PackItem* items, std::size_t count, std::int64_t tiles, const Conversion& how,
            void* stream) override {
    const CudaDeviceGuard selected(index_);
    PassedItems passed{};
    const bool passes = count <= most_items_passed;
    if (passes) std::memcpy(passed.items, items, count * sizeof(PackItem));
    const PackItem* const table = passes ? nullptr : items;
    const auto blocks = std::min<std::int64_t>(tiles, 1 << 30);
    constexpr auto name = "the launch of the pack kernel";
    const auto length = static_cast<std::int64_t>(count);
    if (how.is_copy()) {
      launch(name, run_items<unsigned char, unsigned char, Keep>, blocks, raw(stream), table, passed, length, tiles,
             Keep{});
    } else {
      with_types(how, [&]<class To, class From>() {
        using How = Convert<To, From>;
        launch(name, run_items<To, From, How>, blocks, raw(stream), table, passed, length, tiles, How{how});
      });
    }
  }
  void combine(const Combination& what, void* stream) override {
    if (what.count == 0) return;
    const CudaDeviceGuard selected(index_);
    launch_combination(what, raw(stream), what.dtype);
  }

  void* allocate(std::size_t bytes) override {
    const CudaDeviceGuard selected(index_);
    void* data = nullptr;
    check_cuda(cudaMalloc(&data, std::max<std::size_t>(bytes, 1)), "cudaMalloc");
    return data;
  }
  void release(void* data) noexcept override { (void)cudaFree(data); }
  void* allocate_pinned(std::size_t bytes) override {
    const CudaDeviceGuard selected(index_);
    void* data = nullptr;
    check_cuda(cudaHostAlloc(&data, std::max<std::size_t>(bytes, 1), cudaHostAllocPortable), "cudaHostAlloc");
    return data;
  }
  void release_pinned(void* data) noexcept override { (void)cudaFreeHost(data); }
  void* allocate_scratch(std::size_t bytes) override {
    const CudaDeviceGuard selected(index_);
    void* data = nullptr;
    check_cuda(cudaMallocAsync(&data, std::max<std::size_t>(bytes, 1), own_stream()), "cudaMallocAsync");
    finish_own_stream();
    return data;
  }
  void release_scratch(void* data) noexcept override { (void)cudaFreeAsync(data, raw(own_stream_)); }

  std::uint64_t begin_range(const std::string& text) override {
    nvtxEventAttributes_t attributes{};
    attributes.version = NVTX_VERSION;
    attributes.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
    attributes.messageType = NVTX_MESSAGE_TYPE_ASCII;
    attributes.message.ascii = text.c_str();
    return nvtxDomainRangeStartEx(domain(), &attributes);
  }
  void end_range(std::uint64_t range) noexcept override { nvtxDomainRangeEnd(domain(), range); }

 private:
  static nvtxDomainHandle_t domain() {
    static const nvtxDomainHandle_t handle = nvtxDomainCreateA("kolo");
    return handle;
  }

  /// What returns when it is done goes there. The default streams would wait for all that the program has put on them,
  /// maybe for other ranks. Never destroyed.
  cudaStream_t own_stream() {
    std::call_once(own_stream_made_, [this] { own_stream_ = make_stream(StreamPriority::normal); });
    return raw(own_stream_);
  }
  void finish_own_stream() {
    const CudaDeviceGuard selected(index_);
    check_cuda(cudaStreamSynchronize(own_stream()), "cudaStreamSynchronize");
  }

  int index_;
  std::once_flag own_stream_made_;
  void* own_stream_ = nullptr;
  EventPool events_, timed_events_;
  mutable std::atomic<std::size_t> peak_{0};
};

}  // namespace

bool has_cuda() {
  return true;
}

int cuda_gpus() {
  static const int count = [] {
    int found = 0;
    if (cudaGetDeviceCount(&found) == cudaSuccess) return found;
    (void)cudaGetLastError();  // no driver, or no GPU: none
    return 0;
  }();
  return count;
}

Gpu& cuda_gpu(int index) {
  static std::vector<CudaGpu*>* const gpus = [] {  // never destroyed: a static session may use them after all else
    auto* all = new std::vector<CudaGpu*>;
    for (int i = 0; i < cuda_gpus(); ++i) all->push_back(new CudaGpu(i));
    return all;
  }();
  if (index < 0 || index >= cuda_gpus()) {
    throw Error(ErrorCode::backend, "there is no GPU " + std::to_string(index) + " (this process sees " +
                                        std::to_string(cuda_gpus()) + "); look at nvidia-smi and CUDA_VISIBLE_DEVICES");
  }
  return *(*gpus)[static_cast<std::size_t>(index)];
}

}  // namespace kolo
