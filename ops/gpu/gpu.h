#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <string>

#include <kolo/detail/unique.h>
#include <kolo/device.h>
#include <kolo/device_backend.h>
#include <kolo/error.h>

#include "ops/gpu/pack_items.h"

namespace kolo {

/// A GPU, as start-up prints and compares it.
struct GpuFacts {
  std::string name;       ///< "NVIDIA H100 80GB HBM3"
  std::string bus;        ///< "0000:0f:00.0"; unique on its machine
  int numa_node = -1;     ///< -1: unknown
  std::size_t bytes = 0;  ///< of memory
};

/// Memory of a GPU in bytes, as used by all processes.
struct GpuMemoryUse {
  std::size_t total = 0;
  std::size_t used = 0;
  std::size_t peak = 0;  ///< of `used`, whenever it was asked for
};

/// Kernels of the higher go first. `high` is above the program's own streams where the GPU has three levels.
enum class StreamPriority { normal, high, highest };

/// What select() finds, and select_again() restores.
struct GpuSelection {
  int gpu = 0;
  int capture_mode = 0;  ///< a cudaStreamCaptureMode
};

/// One GPU, as the data plane needs it. Streams are cudaStream_t, opaque here; null is the default stream, which waits
/// for the others.
///
/// What takes a stream only puts work on it, and returns: memory is touched later, in the stream's order. What takes
/// none returns when it is done. Objects live as long as the program; used by any thread. Everything throws
/// Error{backend} with the call's name and place. Nothing disturbs what the program captures into a CUDA graph.
class Gpu {
 public:
  virtual ~Gpu() = default;

  virtual int index() const = 0;
  virtual GpuFacts facts() const = 0;
  /// Zeros as long as this process does not use the GPU: asking would take hundreds of MiB.
  virtual GpuMemoryUse memory_use() const = 0;

  /// Makes this the calling thread's current GPU, lets it call what would end the captures of other threads, and
  /// returns what was before: see GpuGuard. A GPU that this process does not use is not selected again: selecting it
  /// takes hundreds of MiB of its memory.
  virtual GpuSelection select() = 0;
  virtual void select_again(const GpuSelection& before) noexcept = 0;

  /// Whether `stream` is being captured: then nothing that is put on it runs, and points in it cannot be waited for.
  virtual bool is_capturing(void* stream) = 0;

  /// Loads all kernels of pack() and combine(), once: CUDA would load each at its first launch, and wait for the GPU.
  virtual void load_kernels() = 0;

  virtual void* make_stream(StreamPriority priority) = 0;
  virtual void destroy_stream(void* stream) noexcept = 0;

  /// The point that `stream` has come to once all that was put on it has run. `timed`: the GPU notes when.
  virtual std::shared_ptr<const DevicePoint> mark(void* stream, bool timed = false) = 0;
  /// From one timed point of this GPU to another; both have passed.
  virtual double seconds_between(const DevicePoint& from, const DevicePoint& to) = 0;

  /// Copies between any two of this GPU's memory and host memory that allocate_pinned() gave.
  virtual void copy(void* to, const void* from, std::size_t bytes, void* stream) = 0;
  virtual void clear(void* data, std::size_t bytes, void* stream) = 0;
  /// Of this GPU's memory and any host memory.
  virtual void copy(void* to, const void* from, std::size_t bytes) = 0;
  virtual void clear(void* data, std::size_t bytes) = 0;

  /// Runs items that lay_tiles() has laid out, in one launch. `items` is memory of this GPU, or any if there are at
  /// most `most_items_passed`: then they are read before this returns.
  virtual void pack(const PackItem* items, std::size_t count, std::int64_t tiles, const Conversion& how,
                    void* stream) = 0;
  virtual void combine(const Combination& what, void* stream) = 0;

  /// Memory of this GPU, aligned to 256 bytes at least; and host memory that copies can run from by themselves.
  virtual void* allocate(std::size_t bytes) = 0;
  virtual void release(void* data) noexcept = 0;
  virtual void* allocate_pinned(std::size_t bytes) = 0;
  virtual void release_pinned(void* data) noexcept = 0;
  /// Memory as of allocate(), which nothing uses any more when it is released: that waits for nothing, while the others
  /// wait for all that the GPU runs, maybe with other ranks.
  virtual void* allocate_scratch(std::size_t bytes) = 0;
  virtual void release_scratch(void* data) noexcept = 0;
  /// Waits for all that this process has put on this GPU until now, as release() does. Whether it could.
  virtual bool wait_for_all() noexcept = 0;

  /// A range that profilers show.
  virtual std::uint64_t begin_range(const std::string& text) = 0;
  virtual void end_range(std::uint64_t range) noexcept = 0;
};

/// Up to this many pack items are passed as kernel arguments; more go through a device array.
inline constexpr std::size_t most_items_passed = 96;

// Defined by gpu_cuda.cu or no_cuda.cc (in tests fake_gpu.cc), exactly one of which is linked.

/// Whether this build has CUDA.
bool has_cuda();
/// How many GPUs this process sees; 0 also without a driver or without CUDA.
int cuda_gpus();
/// GPU `index`, from 0. Throws Error{invalid_argument} without CUDA, Error{backend} if there is no such GPU.
Gpu& cuda_gpu(int index);

/// Memory on the host or on a GPU, aligned to 64 bytes at least. Throws what cuda_gpu() does, and Error{backend} if
/// there is no more.
std::shared_ptr<std::byte> allocate_on(Device device, std::size_t bytes, bool zeros);
/// The same, as scratch memory of the GPU: for what is freed under the coordinator's role.
std::shared_ptr<std::byte> scratch_on(Device device, std::size_t bytes, bool zeros);

/// Makes a GPU current for the calls of this scope, which disturb no capture.
class GpuGuard final {
 public:
  explicit GpuGuard(Gpu& gpu) : gpu_(gpu), before_(gpu.select()) {}
  /// Throws nothing: where the GPU cannot be selected, the calls of the scope fail.
  GpuGuard(Gpu& gpu, std::nothrow_t) noexcept : gpu_(gpu) {
    try {
      before_ = gpu.select();
    } catch (const Error&) {
    }
  }
  ~GpuGuard() {
    if (before_) gpu_.select_again(*before_);
  }
  GpuGuard(const GpuGuard&) = delete;
  GpuGuard& operator=(const GpuGuard&) = delete;

 private:
  Gpu& gpu_;
  std::optional<GpuSelection> before_;
};

/// Of a handle that a GPU made, for Unique<>.
template <class T, void (Gpu::*release)(T) noexcept>
struct GpuHandleTraits {
  struct Raw {
    Gpu* gpu = nullptr;
    T handle{};
    bool operator==(const Raw&) const = default;
  };
  static Raw null() noexcept { return {}; }
  static void destroy(const Raw& raw) noexcept { (raw.gpu->*release)(raw.handle); }
};

/// Owns a stream.
class GpuStream final {
 public:
  explicit GpuStream(Gpu& gpu, StreamPriority priority = StreamPriority::normal)
      : stream_({&gpu, gpu.make_stream(priority)}) {}
  void* get() const { return stream_.get().handle; }

 private:
  Unique<GpuHandleTraits<void*, &Gpu::destroy_stream>> stream_;
};

/// Owns memory of a GPU, or pinned host memory.
class GpuBuffer final {
 public:
  enum class Kind { gpu, pinned };

  GpuBuffer() = default;
  GpuBuffer(Gpu& gpu, std::size_t bytes, Kind kind = Kind::gpu) : size_(bytes) {
    if (kind == Kind::gpu)
      memory_.reset({&gpu, gpu.allocate(bytes)});
    else
      pinned_.reset({&gpu, gpu.allocate_pinned(bytes)});
  }

  std::byte* data() const { return static_cast<std::byte*>(memory_ ? memory_.get().handle : pinned_.get().handle); }
  std::size_t size() const { return size_; }

  /// Forgets the memory without releasing it, when something may still use it.
  void leak() noexcept {
    (void)memory_.release();
    (void)pinned_.release();
  }

 private:
  Unique<GpuHandleTraits<void*, &Gpu::release>> memory_;  // one of the two
  Unique<GpuHandleTraits<void*, &Gpu::release_pinned>> pinned_;
  std::size_t size_ = 0;
};

/// A profiler's range from its making to its end.
class GpuRange final {
 public:
  GpuRange() = default;
  GpuRange(Gpu& gpu, const std::string& text) : range_({&gpu, gpu.begin_range(text)}) {}

 private:
  Unique<GpuHandleTraits<std::uint64_t, &Gpu::end_range>> range_;
};

}  // namespace kolo
