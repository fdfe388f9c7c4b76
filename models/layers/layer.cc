#include "models/layers/layer.h"

#include <cmath>
#include <utility>

namespace kolo::models {

Initial Initial::uniform(std::int64_t inputs) {
  return {Kind::uniform, 1 / std::sqrt(static_cast<double>(inputs))};
}

std::size_t ParameterList::add(std::string name, const Shape& shape, Initial from, bool decays) {
  all.push_back({.name = std::move(name), .shape = shape, .decays = decays});
  initial.push_back(from);
  return all.size() - 1;
}

std::size_t ParameterList::add_buffer(std::string name, const Shape& shape, double value) {
  const std::size_t index = add(std::move(name), shape, Initial::constant(value), false);
  all[index].trained = false;
  return index;
}

std::size_t bytes_of(std::initializer_list<const Buffer*> buffers) {
  std::size_t sum = 0;
  for (const Buffer* buffer : buffers) sum += buffer->bytes();
  return sum;
}

Tensor Workspace::beside(Compute& compute, const Tensor& other, const Shape& shape, DType dtype) {
  const bool taken = other.data != nullptr && other.data == gradient[0].data();
  return gradient[taken ? 1 : 0].make(compute, dtype, shape, "gradients of a layer's input");
}

std::size_t Workspace::bytes() const {
  return bytes_of({&gradient[0], &gradient[1], &output, &wide, &items, &d_items, &residual_items});
}

void Context::finish(std::size_t parameter) const {
  store.finish(parameter);
  if (grad_ready != nullptr) (*grad_ready)(parameter);
}

Tensor Context::output(Buffer& kept, const Shape& shape, std::string_view what, DType passing_as) const {
  if (passing) return workspace.output.make(compute, passing_as, shape, what);
  return kept.make(compute, to_kept ? this->kept() : DType::f32, shape, what);
}

Tensor Context::gradient(const Tensor& d, const Shape& shape) const {
  return workspace.beside(compute, d, shape, gradient_kept ? kept() : DType::f32);
}

Tensor Context::rounded(const Tensor& x, Buffer& memory, std::string_view what) const {
  if (x.dtype == items) return x;
  const Tensor result = memory.make(compute, items, x.shape, what);
  compute.cast(x, result);
  return result;
}

Values::Values(const Context& context, std::size_t first, std::size_t count, DType dtype, const Shape& shape)
    : store_(&context.store),
      first_(first),
      count_(count),
      tensor_(reshaped(context.store.acquire(first, count, dtype), shape)) {}

Tensor as_rows(const Tensor& tensor, std::int64_t width) {
  return reshaped(tensor, {tensor.elements() / width, width});
}

}  // namespace kolo::models
