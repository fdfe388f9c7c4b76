#include <cstdlib>
#include <cstring>
#include <limits>

#include <fmt/format.h>

#include <kolo/error.h>

#include "ops/gpu/device.h"

namespace kolo {
namespace {

class CpuMemory final : public DeviceMemory {
 public:
  void* allocate(std::size_t bytes, int /*index*/) const override {
    constexpr std::size_t alignment = 64;
    const bool fits = bytes <= std::numeric_limits<std::ptrdiff_t>::max();
    void* data = fits ? std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment) : nullptr;
    if (!data) throw Error(ErrorCode::backend, fmt::format("cannot allocate {} bytes of host memory", bytes));
    return data;
  }
  void release(void* data) const noexcept override { std::free(data); }
  void clear(void* data, std::size_t bytes) const override { std::memset(data, 0, bytes); }
  void copy(void* destination, const void* source, std::size_t bytes) const override {
    std::memcpy(destination, source, bytes);
  }
};

}  // namespace

const DeviceMemory* device_memory(DeviceKind kind) {
  static const CpuMemory* const cpu =
      new CpuMemory;  // never destroyed: a static session may release memory after all else
  return kind == DeviceKind::cpu ? cpu : cuda_memory();
}

}  // namespace kolo
