#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include <kolo/device.h>
#include <kolo/device_backend.h>
#include <kolo/error.h>

#include "ops/gpu/pack_items.h"

namespace kolo {

/// What is worth knowing of a gpu at start-up.
struct CardFacts {
  std::string name;       ///< "NVIDIA H100 80GB HBM3"
  std::string bus;        ///< "0000:0f:00.0"; tells gpus of a machine apart
  int numa_node = -1;     ///< -1: unknown
  std::size_t bytes = 0;  ///< of memory
};

/// Memory of a gpu, of all that use it, in bytes.
struct CardMemoryUse {
  std::size_t total = 0;
  std::size_t used = 0;
  std::size_t peak = 0;  ///< of `used`, as far as somebody has looked: ask now and then
};

/// One GPU, as the data plane needs it. Streams are cudaStream_t, opaque here; null is the default stream, which waits
/// for the others.
///
/// What takes a stream only puts work on it, and returns: memory is touched later, in the stream's order. Objects live
/// as long as the program; used by any thread. Everything throws Error{backend} with the call's name and place.
class Gpu {
 public:
  virtual ~Gpu() = default;

  virtual int index() const = 0;
  virtual CardFacts facts() const = 0;
  virtual CardMemoryUse memory_use() const = 0;

  /// Makes this the calling thread's current gpu, and returns which was: for libraries that look at it. A gpu that
  /// this process does not use is not selected again: that alone takes hundreds of MiB of it.
  virtual int select() = 0;
  virtual void select_again(int before) noexcept = 0;

  /// `urgent`: its kernels go before those of other streams.
  virtual void* make_stream(bool urgent) = 0;
  virtual void destroy_stream(void* stream) noexcept = 0;

  /// The point that `stream` has come to once all that was put on it has run. `timed`: the gpu notes when.
  virtual std::shared_ptr<const DevicePoint> mark(void* stream, bool timed = false) = 0;
  /// From one timed point of this gpu to another; both have passed.
  virtual double seconds_between(const DevicePoint& from, const DevicePoint& to) = 0;

  /// Copies between any two of this gpu's memory and host memory that allocate_pinned() gave.
  virtual void copy(void* to, const void* from, std::size_t bytes, void* stream) = 0;
  virtual void clear(void* data, std::size_t bytes, void* stream) = 0;

  /// Runs moves that lay_tiles() has laid out, in one launch. `moves` is memory of this gpu, or any if there are at
  /// most `most_moves_passed`: they are read before this returns then.
  virtual void move(const PackItem* moves, std::size_t count, std::int64_t tiles, const Conversion& how,
                    void* stream) = 0;
  virtual void combine(const Combination& what, void* stream) = 0;

  /// Memory of this gpu, aligned to 256 bytes at least; and host memory that copies can run from by themselves.
  virtual void* allocate(std::size_t bytes) = 0;
  virtual void release(void* data) noexcept = 0;
  virtual void* allocate_pinned(std::size_t bytes) = 0;
  virtual void release_pinned(void* data) noexcept = 0;

  /// A range for whoever watches this process with a profiler.
  virtual std::uint64_t begin_range(const std::string& text) = 0;
  virtual void end_range(std::uint64_t range) noexcept = 0;
};

/// So many moves travel as arguments of a launch.
inline constexpr std::size_t most_moves_passed = 96;

/// How many gpus this process sees; 0 too if there is no driver, or the build has no CUDA.
int cuda_cards();

/// Gpu `index`, from 0. Defined, like cuda_cards(), by device_cuda.cu or no_cuda.cc, exactly one of which is linked.
Gpu& cuda_gpu(int index);

/// Makes a gpu current for the calls of this scope.
class GpuGuard final {
 public:
  explicit GpuGuard(Gpu& gpu) : gpu_(gpu), before_(gpu.select()) {}
  /// Throws nothing: where the gpu cannot be selected, the calls themselves fail, too.
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
  std::optional<int> before_;
};

/// Owns a stream.
class CardStream final {
 public:
  explicit CardStream(Gpu& gpu, bool urgent = false) : gpu_(gpu), stream_(gpu.make_stream(urgent)) {}
  ~CardStream() { gpu_.destroy_stream(stream_); }
  CardStream(const CardStream&) = delete;
  CardStream& operator=(const CardStream&) = delete;
  void* get() const { return stream_; }

 private:
  Gpu& gpu_;
  void* stream_;
};

/// Owns a piece of a gpu's memory, or of pinned host memory.
class GpuBuffer final {
 public:
  enum class Kind { gpu, pinned };

  GpuBuffer() = default;
  GpuBuffer(Gpu& gpu, std::size_t bytes, Kind kind = Kind::gpu)
      : gpu_(&gpu),
        kind_(kind),
        data_(kind == Kind::gpu ? gpu.allocate(bytes) : gpu.allocate_pinned(bytes)),
        size_(bytes) {}
  GpuBuffer(GpuBuffer&& other) noexcept { *this = std::move(other); }
  GpuBuffer& operator=(GpuBuffer&& other) noexcept {
    std::swap(gpu_, other.gpu_);
    std::swap(kind_, other.kind_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~GpuBuffer() {
    if (!data_) return;
    if (kind_ == Kind::gpu)
      gpu_->release(data_);
    else
      gpu_->release_pinned(data_);
  }

  std::byte* data() const { return static_cast<std::byte*>(data_); }
  std::size_t size() const { return size_; }

  /// Forgets the memory without releasing it, when something may still use it.
  void leak() noexcept { data_ = nullptr; }

 private:
  Gpu* gpu_ = nullptr;
  Kind kind_ = Kind::gpu;
  void* data_ = nullptr;
  std::size_t size_ = 0;
};

/// A profiler's range from its making to its end.
class CardRange final {
 public:
  CardRange() = default;
  CardRange(Gpu& gpu, const std::string& text) : gpu_(&gpu), range_(gpu.begin_range(text)) {}
  CardRange(CardRange&& other) noexcept : gpu_(std::exchange(other.gpu_, nullptr)), range_(other.range_) {}
  CardRange& operator=(CardRange&& other) noexcept {
    std::swap(gpu_, other.gpu_);
    std::swap(range_, other.range_);
    return *this;
  }
  ~CardRange() {
    if (gpu_) gpu_->end_range(range_);
  }

 private:
  Gpu* gpu_ = nullptr;
  std::uint64_t range_ = 0;
};

}  // namespace kolo
