#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <kolo/device.h>
#include <kolo/tensor.h>

namespace kolo {

class Session;

/// Bytes that this process can still allocate before the machine, or its control group, is out of memory, by the
/// kernel's figures; the largest number if there are none. `root`: of the file system to read them from, for tests.
std::size_t available_memory(const std::string& root = "");

/// Memory that a session allocated; it may outlive the session. Move-only.
class Memory {
 public:
  Memory() = default;
  Memory(std::shared_ptr<void> owner, std::byte* data, std::size_t bytes, Device device)
      : owner_(std::move(owner)), data_(data), bytes_(bytes), device_(device) {}
  Memory(Memory&&) noexcept = default;
  Memory& operator=(Memory&&) noexcept = default;

  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  Device device() const { return device_; }

 private:
  std::shared_ptr<void> owner_;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  Device device_{};
};

/// Tensors in one contiguous allocation of a session, in the order given and without gaps: a bucket of neighbours needs
/// no packing. Order gradients as they become ready.
///
///     kolo::GradientArena arena(session, kolo::DType::f32, shapes);
///     model.use_gradients(arena.tensors());
class GradientArena {
 public:
  /// Throws as Session::allocate() does, and Error{invalid_argument} if a shape is not valid.
  GradientArena(Session& session, DType dtype, std::span<const Shape> shapes, Device device = {});

  const std::vector<Tensor>& tensors() const { return tensors_; }
  /// All of them as one tensor of one dimension.
  Tensor whole() const;

 private:
  Memory memory_;
  DType dtype_;
  std::vector<Tensor> tensors_;
};

}  // namespace kolo
