// Memory of the C API.

#include <fmt/format.h>

#include <stdexcept>
#include <vector>

#include "runtime/c_api/parts.h"

using kolo::c_api::at;
using kolo::c_api::device_of;
using kolo::c_api::guarded;
using kolo::c_api::result;

int kolo_available_memory(size_t* bytes) {
  return guarded([&] { at(bytes, "bytes") = kolo::available_memory(); });
}

int kolo_memory_adopt(kolo_session* session, void* data, size_t bytes) {
  return guarded([&] { at(session, "session").session.adopt(data, bytes); });
}

int kolo_memory_allocate(kolo_session* session, size_t bytes, int device_kind, int device_index, kolo_memory** memory) {
  return guarded([&] {
    kolo_memory*& made = result(memory, "memory");
    made = new kolo_memory{at(session, "session").session.allocate(bytes, device_of(device_kind, device_index))};
  });
}

int kolo_memory_data(const kolo_memory* memory, void** data) {
  return guarded([&] { at(data, "data") = at(memory, "memory").memory.data(); });
}
int kolo_memory_bytes(const kolo_memory* memory, size_t* bytes) {
  return guarded([&] { at(bytes, "bytes") = at(memory, "memory").memory.bytes(); });
}
int kolo_memory_device(const kolo_memory* memory, int* device_kind, int* device_index) {
  return guarded([&] {
    at(device_index, "device_index") = 0;
    const kolo::Device device = at(memory, "memory").memory.device();
    at(device_kind, "device_kind") = static_cast<int>(device.kind);
    *device_index = device.index;
  });
}
int kolo_memory_free(kolo_memory* memory) {
  return guarded([&] { delete memory; });
}

int kolo_arena_create(kolo_session* session, kolo_tensor* tensors, size_t count, kolo_arena** arena) {
  return guarded([&] {
    kolo_arena*& made = result(arena, "arena");
    auto& chosen = at(session, "session").session;
    if (count > 0) at(tensors, "tensors");
    const kolo::Tensor first = count > 0 ? kolo::c_api::tensor_of(tensors[0]) : kolo::Tensor{};
    std::vector<kolo::Shape> shapes;
    for (std::size_t i = 0; i < count; ++i) {
      const kolo::Tensor tensor = kolo::c_api::tensor_of(tensors[i]);
      if (tensor.dtype != first.dtype || tensor.device != first.device) {
        throw std::invalid_argument(
            fmt::format("tensor {} is of another type or on another device than the first; make an arena for each", i));
      }
      shapes.push_back(tensor.shape);
    }
    made = new kolo_arena{kolo::GradientArena(chosen, first.dtype, shapes, first.device)};
    for (std::size_t i = 0; i < count; ++i) tensors[i].data = made->arena.tensors()[i].data;
  });
}

int kolo_arena_whole(const kolo_arena* arena, kolo_tensor* tensor) {
  return guarded([&] { at(tensor, "tensor") = kolo::c_api::to_c(at(arena, "arena").arena.whole()); });
}

int kolo_arena_destroy(kolo_arena* arena) {
  return guarded([&] { delete arena; });
}
