#include "models/model/store.h"

#include "models/compute/views.h"

namespace kolo::models {
KeepAll::KeepAll(std::span<const Parameter> parameters, Compute& compute)
    : parameters_(parameters), compute_(&compute), rounded_(parameters.size()) {}

std::int64_t KeepAll::elements(std::size_t first, std::size_t count) const {
  std::int64_t sum = 0;
  for (const Parameter& parameter : parameters_.subspan(first, count)) sum += parameter.shape.elements();
  return sum;
}

Tensor KeepAll::acquire(std::size_t first, std::size_t count, DType dtype) {
  const Shape shape{elements(first, count)};
  const Tensor values = reshaped(parameters_[first].value, shape);
  if (dtype == DType::f32) return values;
  Rounded& rounded = rounded_[first];
  const Tensor result = rounded.memory.make(*compute_, dtype, shape, "weights in 16 bits");
  if (rounded.pass != pass_) compute_->cast(values, result);
  rounded.pass = pass_;
  return result;
}

Tensor KeepAll::gradients(std::size_t first, std::size_t count) {
  check_gradient(parameters_[first]);
  return reshaped(parameters_[first].gradient, Shape{elements(first, count)});
}

}  // namespace kolo::models
