#include "models/compute/views.h"

namespace kolo::models {

Tensor reshaped(const Tensor& tensor, const Shape& shape) {
  return {.data = tensor.data, .shape = shape, .dtype = tensor.dtype, .device = tensor.device};
}

Tensor part_of(const Tensor& tensor, std::int64_t first, const Shape& shape) {
  Tensor part = reshaped(tensor, shape);
  part.data = static_cast<std::byte*>(tensor.data) + static_cast<std::size_t>(first) * size_of(tensor.dtype);
  return part;
}

OnHost::OnHost(Compute& compute, const Tensor& tensor) : compute_(&compute), tensor_(tensor) {
  const auto elements = static_cast<std::size_t>(tensor.elements());
  if (tensor.device.kind == DeviceKind::cpu) {
    floats_ = {static_cast<float*>(tensor.data), elements};
    return;
  }
  copy_.resize(elements);
  floats_ = copy_;
  compute.read(tensor, copy_.data());
}

void OnHost::put_back() {
  if (!copy_.empty()) compute_->copy(reshaped(view(copy_.data(), Shape{tensor_.elements()}), tensor_.shape), tensor_);
}

}  // namespace kolo::models
