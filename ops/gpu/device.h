#pragma once

#include <cstddef>
#include <utility>

#include <kolo/device.h>

namespace kolo {

/// Memory of one kind of device, as seen from this process. Objects live as long as the program and may be used by any
/// thread.
class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;

  /// `bytes` bytes on device `index` of this kind, aligned to 64 bytes at least. Throws Error{backend}.
  virtual void* allocate(std::size_t bytes, int index) const = 0;
  virtual void release(void* data) const noexcept = 0;

  /// Makes all bytes zero.
  virtual void clear(void* data, std::size_t bytes) const = 0;

  /// Copies between two places of which each is on a device of this kind or on the host. Returns when the copy is
  /// complete: callers on a hot path order copies by streams instead. Throws Error{backend}.
  virtual void copy(void* destination, const void* source, std::size_t bytes) const = 0;
};

/// The memory of a kind of device, or null if this build has none.
const DeviceMemory* device_memory(DeviceKind kind);

/// What device_memory() answers for cuda: defined by device_cuda.cu or no_cuda.cc, exactly one of which is linked.
const DeviceMemory* cuda_memory();

/// Owns a piece of device memory.
class DeviceBuffer final {
 public:
  DeviceBuffer() = default;
  /// Requires that device_memory(device.kind) is not null. Throws Error{backend}.
  DeviceBuffer(Device device, std::size_t bytes)
      : memory_(device_memory(device.kind)), data_(memory_->allocate(bytes, device.index)), size_(bytes) {}
  DeviceBuffer(DeviceBuffer&& other) noexcept { *this = std::move(other); }
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    std::swap(memory_, other.memory_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~DeviceBuffer() {
    if (data_) memory_->release(data_);
  }

  std::byte* data() const { return static_cast<std::byte*>(data_); }
  std::size_t size() const { return size_; }

  void clear() { memory_->clear(data_, size_); }

  /// Forgets the memory without releasing it, when somebody may still write to it.
  void leak() noexcept { data_ = nullptr; }

 private:
  const DeviceMemory* memory_ = nullptr;
  void* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace kolo
