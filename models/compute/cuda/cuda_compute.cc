#include "models/compute/cuda/cuda_compute.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "models/compute/cuda/planned_device.h"
#include "models/util/headroom.h"

namespace kolo::models {

std::unique_ptr<Compute> make_cuda_compute(Device device) {
  return std::make_unique<cuda::CudaCompute>(device.index);
}

namespace cuda {

bool in_eights(Index width, std::initializer_list<Tensor> tensors) {
  return width % 8 == 0 && std::ranges::all_of(tensors, [](const Tensor& tensor) {
           return reinterpret_cast<std::uintptr_t>(tensor.data) % 16 == 0;
         });
}

CudaCompute::CudaCompute(int index)
    : index_(index),
      device_(index == planned_gpu ? std::make_unique<PlannedDevice>() : open_device(index)),
      staging_(*device_) {}

std::size_t CudaCompute::planned_bytes() const {
  return index_ == planned_gpu ? static_cast<const PlannedDevice&>(*device_).most_bytes() : 0;
}

void CudaCompute::reserve(std::size_t bytes) {
  if (bytes == 0) return;
  void* const memory = device_->allocate(bytes);
  if (memory == nullptr)
    refuse_memory(fmt::format("a model's passes ({:.1f} GiB)", static_cast<double>(bytes) / (1 << 30)));
  reserved_ = {memory, Release{device_.get()}};
  arena_ = Arena(bytes);
}

void* CudaCompute::allocate(std::size_t bytes) {
  if (const auto offset = arena_.take(bytes)) return static_cast<std::byte*>(reserved_.get()) + *offset;
  return device_->allocate(bytes);
}

/// A piece may be used again at once: what still runs is in order with what will.
void CudaCompute::release(void* memory) noexcept {
  const auto offset =
      static_cast<std::size_t>(static_cast<std::byte*>(memory) - static_cast<std::byte*>(reserved_.get()));
  if (reserved_ && offset < arena_.capacity())
    arena_.give_back(offset);
  else
    device_->release(memory);
}

std::size_t CudaCompute::scratch_bytes() const {
  std::size_t sum = 0;
  for (const Buffer* buffer : {&parts_, &keys_, &convolved_, &gradient_, &head_gradients_[0], &head_gradients_[1],
                               &head_gradients_[2], &inner_, &d_heads_, &scores_}) {
    sum += buffer->bytes();
  }
  return sum;
}

void CudaCompute::copy(const Tensor& from, const Tensor& to) {
  if (from.bytes() == 0) return;
  if (from.device.kind == DeviceKind::cpu)
    staging_.upload(to.data, from.data, from.bytes());
  else
    device_->copy(to.data, from.data, from.bytes());
}

void CudaCompute::copy_ahead(std::span<const Tensor> from, std::span<const Tensor> to, bool in_order) {
  const std::unique_ptr<Point> before = std::exchange(last_arrival_, device_->mark());
  for (std::size_t i = 0; i < from.size(); ++i)
    staging_.upload(to[i].data, from[i].data, from[i].bytes(), in_order ? nullptr : before.get());
}

void CudaCompute::read(const Tensor& from, void* to) {
  if (from.bytes() > 0) device_->copy(to, from.data, from.bytes());
  device_->wait();
}

std::unique_ptr<Reading> CudaCompute::read_later(const Tensor& from) {
  return staging_.download(from.data, from.bytes());
}

void CudaCompute::fill(const Tensor& x, double value) {
  device_->launch(Fill{{.count = x.elements()}, x.data, x.dtype == DType::f64, value});
}

void CudaCompute::cast(const Tensor& from, const Tensor& to) {
  device_->launch(
      Cast{{.count = from.elements()}, items_of(from), items_of(to), in_eights(from.elements(), {from, to})});
}

void CudaCompute::add(const Tensor& a, const Tensor& b, const Tensor& sum) {
  device_->launch(Add{{.count = sum.elements()}, data_of(a), items_of(b), data_of(sum)});
}

void CudaCompute::product(const Product& how, const Tensor& a, const Tensor& b, const Tensor& c) {
  PlainProduct product{{.m = c.shape[0], .n = c.shape[1]},
                       a.shape[how.transpose_a ? 0 : 1],
                       how.transpose_a,
                       how.transpose_b,
                       how.add,
                       how.activation == Activation::relu,
                       tf32_,
                       items_of(a),
                       items_of(b),
                       items_of(how.bias),
                       items_of(c)};
  if (how.sums.data != nullptr) {
    if (sum_beside(product, a, how)) return;
    bias_backward({}, a, how.add, how.sums);
  }
  if (!device_->multiply(product)) device_->launch(product);
}

/// The product and its sums by a library; false, and nothing done, where it has no such one.
bool CudaCompute::sum_beside(PlainProduct product, const Tensor& a, const Product& how) {
  product.sums = summed_parts({}, a).parts;  // as large as without a library: plans have one
  if (!device_->multiply(product)) return false;
  sum_parts(product.sums, 1, how.add, data_of(how.sums), product.m);
  return true;
}

/// The sum of parts [parts, columns].
void CudaCompute::sum_parts(const float* parts, Index count, bool add, float* to, Index columns) {
  device_->launch(SumParts{columns, parts, count, add, to});
}

/// Of bias_backward(), with memory for the sums.
BiasParts CudaCompute::summed_parts(const Tensor& y, const Tensor& dy) {
  BiasParts bias{rows_of(dy), row_of(dy), items_of(y), items_of(dy)};
  bias.parts = data_of(parts_.make(*this, DType::f32, {bias.chunks(), bias.columns}, "parts of a bias's gradient"));
  return bias;
}

void CudaCompute::bias_backward(const Tensor& y, const Tensor& dy, bool add, const Tensor& dbias) {
  if (dbias.data == nullptr) {
    if (y.data != nullptr) device_->launch(BiasParts{rows_of(dy), row_of(dy), items_of(y), items_of(dy)});
    return;
  }
  const BiasParts bias = summed_parts(y, dy);
  device_->launch(bias);
  sum_parts(bias.parts, bias.chunks(), add, data_of(dbias), bias.columns);
}

}  // namespace cuda
}  // namespace kolo::models
