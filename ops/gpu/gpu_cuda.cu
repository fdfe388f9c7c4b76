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

#include "ops/gpu/cuda_kernels.h"
#include "ops/gpu/gpu.h"

namespace kolo {
namespace {

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

/// From now on the calls of this thread end no capture. Returns what was before.
int allow_captures() noexcept {
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  (void)cudaThreadExchangeStreamCaptureMode(&mode);
  return mode;
}
void exchange_capture_mode(int before) noexcept {
  auto mode = static_cast<cudaStreamCaptureMode>(before);
  (void)cudaThreadExchangeStreamCaptureMode(&mode);
}

/// Selects a device for the calls of this scope, and then the one that the thread had selected before. These calls end
/// no capture of the program's, on any thread.
class CudaDeviceGuard final {
 public:
  explicit CudaDeviceGuard(int index) : index_(index) {
    check_cuda(cudaGetDevice(&before_), "cudaGetDevice");
    if (before_ != index_) check_cuda(cudaSetDevice(index_), "cudaSetDevice");
  }
  /// Throws nothing: where the device cannot be selected, the calls of the scope fail.
  CudaDeviceGuard(int index, std::nothrow_t) noexcept : index_(index) {
    if (cudaGetDevice(&before_) != cudaSuccess) before_ = index_;
    if (before_ != index_) (void)cudaSetDevice(index_);
  }
  ~CudaDeviceGuard() {
    if (before_ != index_) select_device_again(before_);
    exchange_capture_mode(capture_mode_);
  }
  CudaDeviceGuard(const CudaDeviceGuard&) = delete;
  CudaDeviceGuard& operator=(const CudaDeviceGuard&) = delete;

 private:
  int index_;
  int before_ = 0;
  int capture_mode_ = allow_captures();
};

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

  GpuFacts facts() const override {  // selects nothing: that would take memory of the GPU
    cudaDeviceProp properties{};
    check_cuda(cudaGetDeviceProperties(&properties, index_), "cudaGetDeviceProperties");
    char bus[32] = {};
    check_cuda(cudaDeviceGetPCIBusId(bus, sizeof(bus), index_), "cudaDeviceGetPCIBusId");
    return {properties.name, bus, numa_node_of(bus), properties.totalGlobalMem};
  }

  GpuMemoryUse memory_use() const override {
    if (!has_context(index_)) return {};
    const CudaDeviceGuard selected(index_);
    std::size_t free = 0, total = 0;
    check_cuda(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    const std::size_t used = total - free;
    std::size_t peak = peak_;
    while (peak < used && !peak_.compare_exchange_weak(peak, used)) {
    }
    return {total, used, std::max(peak, used)};
  }

  GpuSelection select() override {
    GpuSelection before;
    check_cuda(cudaGetDevice(&before.gpu), "cudaGetDevice");
    check_cuda(cudaSetDevice(index_), "cudaSetDevice");
    before.capture_mode = allow_captures();
    return before;
  }
  void select_again(const GpuSelection& before) noexcept override {
    if (before.gpu != index_) select_device_again(before.gpu);
    exchange_capture_mode(before.capture_mode);
  }

  bool is_capturing(void* stream) override {
    const CudaDeviceGuard selected(index_);
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    const cudaError_t rc = cudaStreamIsCapturing(raw(stream), &status);
    if (rc == cudaErrorStreamCaptureImplicit) {  // the default stream, while one is captured that waits for it
      (void)cudaGetLastError();
      return true;
    }
    check_cuda(rc, "cudaStreamIsCapturing");
    return status != cudaStreamCaptureStatusNone;
  }

  void load_kernels() override {
    std::call_once(kernels_loaded_, [this] {
      const CudaDeviceGuard selected(index_);
      load_all_kernels();
      const std::lock_guard lock(spare_mutex_);
      take_spare();
    });
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
  void destroy_stream(void* stream) noexcept override {
    const CudaDeviceGuard selected(index_, std::nothrow);
    (void)cudaStreamDestroy(raw(stream));
  }

  std::shared_ptr<const DevicePoint> mark(void* stream, bool timed) override {
    return std::make_shared<CudaPoint>(index_, timed ? timed_events_ : events_, raw(stream));
  }
  double seconds_between(const DevicePoint& from, const DevicePoint& to) override {
    const CudaDeviceGuard selected(index_);
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
    launch_items(items, count, tiles, how, raw(stream));
  }
  void combine(const Combination& what, void* stream) override {
    if (what.count == 0) return;
    const CudaDeviceGuard selected(index_);
    launch_combination(what, raw(stream));
  }

  void* allocate(std::size_t bytes) override {
    const CudaDeviceGuard selected(index_);
    void* data = nullptr;
    check_cuda(cudaMalloc(&data, std::max<std::size_t>(bytes, 1)), "cudaMalloc");
    return data;
  }
  void release(void* data) noexcept override {
    const CudaDeviceGuard selected(index_, std::nothrow);
    (void)cudaFree(data);
  }
  void* allocate_pinned(std::size_t bytes) override {
    const CudaDeviceGuard selected(index_);
    void* data = nullptr;
    check_cuda(cudaHostAlloc(&data, std::max<std::size_t>(bytes, 1), cudaHostAllocPortable), "cudaHostAlloc");
    return data;
  }
  void release_pinned(void* data) noexcept override {
    const CudaDeviceGuard selected(index_, std::nothrow);
    (void)cudaFreeHost(data);
  }
  void* allocate_scratch(std::size_t bytes) override {
    const CudaDeviceGuard selected(index_);
    void* data = nullptr;
    check_cuda(cudaMallocAsync(&data, std::max<std::size_t>(bytes, 1), own_stream()), "cudaMallocAsync");
    finish_own_stream();
    return data;
  }
  void release_scratch(void* data) noexcept override {
    const CudaDeviceGuard selected(index_, std::nothrow);
    (void)cudaFreeAsync(data, raw(own_stream_));
  }
  /// By cudaFree, which waits for all streams: cudaDeviceSynchronize would end the program's captures.
  bool wait_for_all() noexcept override {
    const CudaDeviceGuard selected(index_, std::nothrow);
    const std::lock_guard lock(spare_mutex_);
    take_spare();
    const bool waited = spare_ != nullptr && cudaFree(std::exchange(spare_, nullptr)) == cudaSuccess;
    take_spare();
    return waited;
  }

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

  /// Memory to free, taken early: later there may be none.
  void take_spare() noexcept {
    if (spare_ == nullptr && cudaMalloc(&spare_, 1) != cudaSuccess) spare_ = nullptr;
    (void)cudaGetLastError();
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
  std::once_flag own_stream_made_, kernels_loaded_;
  std::mutex spare_mutex_;
  void* spare_ = nullptr;
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
