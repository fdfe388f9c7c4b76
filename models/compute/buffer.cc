#include "models/compute/buffer.h"

#include <fmt/format.h>

#include <utility>

#include "models/util/headroom.h"

namespace kolo::models {

Buffer::~Buffer() {
  if (data_ != nullptr) compute_->release(data_);
}

Buffer::Buffer(Buffer&& other) noexcept
    : compute_(other.compute_), data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(compute_, other.compute_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

Tensor Buffer::make(Compute& compute, DType dtype, const Shape& shape, std::string_view what) {
  const Tensor tensor{.data = data_, .shape = shape, .dtype = dtype, .device = compute.device()};
  const std::size_t bytes = tensor.bytes();
  if (bytes <= bytes_) return tensor;
  if (data_ != nullptr) compute.release(std::exchange(data_, nullptr));
  bytes_ = 0;
  compute_ = &compute;
  data_ = compute.allocate(bytes);
  if (data_ == nullptr) refuse_memory(fmt::format("{} ({:.1f} MiB)", what, static_cast<double>(bytes) / (1 << 20)));
  bytes_ = bytes;
  return {.data = data_, .shape = shape, .dtype = dtype, .device = compute.device()};
}

}  // namespace kolo::models
