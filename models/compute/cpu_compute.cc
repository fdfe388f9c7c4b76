#include "models/compute/cpu_compute.h"

#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "models/compute/cpu_items.h"
#include "models/compute/denormals.h"
#include "models/compute/product.h"
#include "models/util/error.h"

namespace kolo::models {

std::unique_ptr<Compute> make_compute(Device device) {
  if (device.kind == DeviceKind::cpu) return std::make_unique<CpuCompute>();
  return make_cuda_compute(device);
}

void* CpuCompute::allocate(std::size_t bytes) {
  constexpr std::size_t cache_line = 64, large_page = std::size_t{2} << 20;
  const std::size_t alignment = bytes >= large_page ? large_page : cache_line;
  void* memory = nullptr;
  if (::posix_memalign(&memory, alignment, bytes) != 0) return nullptr;
  if (alignment == large_page) ::madvise(memory, bytes, MADV_HUGEPAGE);  // a hint: without them it is slower
  return memory;
}

void CpuCompute::release(void* memory) noexcept {
  std::free(memory);
}

std::size_t CpuCompute::scratch_bytes() const {
  return attention_.bytes() + head_gradients_.bytes() + images_.bytes();
}

void CpuCompute::copy(const Tensor& from, const Tensor& to) {
  read(from, to.data);
}

void CpuCompute::read(const Tensor& from, void* to) {
  if (from.bytes() > 0) std::memcpy(to, from.data, from.bytes());
}

std::unique_ptr<Reading> CpuCompute::read_later(const Tensor& from) {
  struct Copy final : Reading {
    const void* wait() override { return bytes.data(); }
    std::vector<std::byte> bytes;
  };
  auto copy = std::make_unique<Copy>();
  copy->bytes.resize(from.bytes());
  read(from, copy->bytes.data());
  return copy;
}

void CpuCompute::fill(const Tensor& x, double value) {
  if (x.dtype == DType::f64) std::fill_n(data_of<double>(x), x.elements(), value);
  if (x.dtype == DType::f32) std::fill_n(data_of(x), x.elements(), static_cast<float>(value));
}

void CpuCompute::cast(const Tensor& from, const Tensor& to) {
  if (from.dtype == DType::f32) {
    kernels_of(to).narrow(from.elements(), data_of(from), items_of(to));
  } else {
    kernels_of(from).widen(from.elements(), items_of(from), data_of(to));
  }
}

void CpuCompute::add(const Tensor& a, const Tensor& b, const Tensor& sum) {
  const DenormalsAreZero in_here;
  const float *const left = data_of(a), *const right = data_of(b);
  float* const out = data_of(sum);
  const std::int64_t count = sum.elements();
  for (std::int64_t i = 0; i < count; ++i) out[i] = left[i] + right[i];
}

namespace {

/// y [rows, units] += bias, and through max(0, ·) if `activation` says so.
void add_bias(std::int64_t rows, std::int64_t units, const float* bias, Activation activation, float* y) {
  const float floor =
      activation == Activation::relu ? 0.0f : -INFINITY;  // one loop for both, still vector instructions
  for (std::int64_t row = 0; row < rows; ++row, y += units) {
    for (std::int64_t i = 0; i < units; ++i) {
      const float sum = y[i] + bias[i];
      y[i] = sum < floor ? floor : sum;
    }
  }
}

void relu(std::int64_t count, float* y) {
  for (std::int64_t i = 0; i < count; ++i) y[i] = y[i] < 0 ? 0.0f : y[i];
}

/// Zeroes the elements of dy whose y is not positive.
void mask(std::int64_t count, const float* y, float* dy) {
  for (std::int64_t i = 0; i < count; ++i) dy[i] = y[i] > 0 ? dy[i] : 0.0f;
}

}  // namespace

void CpuCompute::product(const Product& how, const Tensor& a, const Tensor& b, const Tensor& c) {
  const DenormalsAreZero in_here;
  const GemmShape shape{.m = c.shape[0],
                        .n = c.shape[1],
                        .k = a.shape[how.transpose_a ? 0 : 1],
                        .transpose_a = how.transpose_a,
                        .transpose_b = how.transpose_b,
                        .beta = how.add ? 1.0f : 0.0f};
  models::product(precision_of(a.dtype), shape, items_of(a), items_of(b), data_of(c));
  if (how.sums.data != nullptr) bias_backward({}, a, how.add, how.sums);
  if (how.bias.data != nullptr) return add_bias(shape.m, shape.n, data_of(how.bias), how.activation, data_of(c));
  if (how.activation == Activation::relu) relu(c.elements(), data_of(c));
}

void CpuCompute::bias_backward(const Tensor& y, const Tensor& dy, bool add, const Tensor& dbias) {
  const DenormalsAreZero in_here;
  const std::int64_t units = row_of(dy), rows = rows_of(dy);
  float* const sums = data_of(dbias);
  if (sums == nullptr) {
    if (y.data != nullptr) mask(dy.elements(), data_of(y), data_of(dy));
    return;
  }
  if (!add) std::fill_n(sums, units, 0.0f);
  for (std::int64_t row = 0; row < rows; ++row) {
    float* const d = data_of(dy) + row * units;
    if (y.data == nullptr) {
      for (std::int64_t i = 0; i < units; ++i) sums[i] += d[i];
      continue;
    }
    const float* const out = data_of(y) + row * units;
    for (std::int64_t i = 0; i < units; ++i) {
      d[i] = out[i] > 0 ? d[i] : 0.0f;
      sums[i] += d[i];
    }
  }
}

}  // namespace kolo::models
