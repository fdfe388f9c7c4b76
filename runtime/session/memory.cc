#include <kolo/memory.h>

#include <fmt/format.h>

#include <algorithm>

#include <kolo/error.h>
#include <kolo/session.h>
#include <kolo/world.h>

#include "ops/gpu/gpu.h"
#include "runtime/session/parts.h"

namespace kolo {

MemorySources memory_sources(const BackendList& backends) {
  MemorySources sources;
  for (const auto& backend : backends) {
    if (auto source = backend->memory()) sources.push_back(std::move(source));
  }
  return sources;
}

Memory allocate_memory(const MemorySources& sources, std::size_t bytes, Device device) {
  for (const auto& source : sources) {
    if (auto memory = source->allocate(bytes, device)) {
      std::byte* const data = memory.get();
      return {std::move(memory), data, bytes, device};
    }
  }
  auto memory = allocate_on(device, bytes, true);
  std::byte* const data = memory.get();
  return {std::move(memory), data, bytes, device};
}

Memory Session::allocate(std::size_t bytes, Device device) {
  return allocate_memory(parts_->memory, bytes, device);
}
void adopt_memory(const MemorySources& sources, void* data, std::size_t bytes) {
  (void)std::ranges::any_of(sources, [&](const auto& source) { return source->adopt(data, bytes); });
}

void Session::adopt(void* data, std::size_t bytes) {
  adopt_memory(parts_->memory, data, bytes);
}
void World::adopt(void* data, std::size_t bytes) {
  adopt_memory(memory_sources(backends()), data, bytes);
}
Memory World::allocate(std::size_t bytes, Device device) {
  return allocate_memory(memory_sources(backends()), bytes, device);
}

void try_to_adopt(Session& session, const Tensor& tensor) {
  constexpr std::size_t few = 64 << 10;
  if (!tensor.data || tensor.bytes() < few || tensor.device.kind != DeviceKind::cpu) return;
  try {
    session.adopt(tensor.data, tensor.bytes());
  } catch (const Error&) {  // of another kind, adopted already, or there is no more
  }
}

GradientArena::GradientArena(Session& session, DType dtype, std::span<const Shape> shapes, Device device)
    : dtype_(dtype) {
  std::int64_t elements = 0;
  for (const Shape& shape : shapes) {
    if (!shape.valid() || __builtin_add_overflow(elements, shape.elements(), &elements) || !Shape{elements}.valid()) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("the shape {} has a negative extent or too many elements", to_string(shape)));
    }
  }
  memory_ = session.allocate(static_cast<std::size_t>(elements) * size_of(dtype), device);
  std::byte* next = memory_.data();
  for (const Shape& shape : shapes) {
    tensors_.push_back({next, shape, dtype, device});
    next += tensors_.back().bytes();
  }
}

Tensor GradientArena::whole() const {
  return {memory_.data(), Shape{static_cast<std::int64_t>(memory_.bytes() / size_of(dtype_))}, dtype_,
          memory_.device()};
}

}  // namespace kolo
