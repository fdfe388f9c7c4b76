#include "ops/gpu/gpu.h"

#include <algorithm>
#include <cstring>

#include "ops/host/host_buffer.h"

namespace kolo {

std::shared_ptr<std::byte> allocate_on(Device device, std::size_t bytes, bool zeros) {
  bytes = std::max<std::size_t>(bytes, 1);
  const auto shared = [](auto buffer) {
    const auto owner = std::make_shared<decltype(buffer)>(std::move(buffer));
    return std::shared_ptr<std::byte>(owner, owner->data());
  };
  if (device.kind == DeviceKind::cpu) {
    HostBuffer buffer(bytes);
    if (zeros) std::memset(buffer.data(), 0, bytes);
    return shared(std::move(buffer));
  }
  Gpu& gpu = cuda_gpu(device.index);
  GpuBuffer buffer(gpu, bytes);
  if (zeros) gpu.clear(buffer.data(), bytes);
  return shared(std::move(buffer));
}

std::shared_ptr<std::byte> scratch_on(Device device, std::size_t bytes, bool zeros) {
  if (device.kind == DeviceKind::cpu) return allocate_on(device, bytes, zeros);
  Gpu& gpu = cuda_gpu(device.index);
  bytes = std::max<std::size_t>(bytes, 1);
  std::shared_ptr<std::byte> scratch(static_cast<std::byte*>(gpu.allocate_scratch(bytes)),
                                     [&gpu](std::byte* data) { gpu.release_scratch(data); });
  if (zeros) gpu.clear(scratch.get(), bytes);
  return scratch;
}

}  // namespace kolo
