#include "tests/gpu/pairs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "models/compute/precision.h"

namespace kolo::smoke {
namespace {

std::vector<double> as_doubles(const Tensor& like, const std::byte* bytes) {
  std::vector<double> all;
  const std::size_t size = size_of(like.dtype);
  const auto load = [&](std::int64_t i, auto value) {
    std::memcpy(&value, bytes + static_cast<std::size_t>(i) * size, sizeof(value));
    return value;
  };
  for (std::int64_t i = 0; i < like.elements(); ++i) {
    switch (like.dtype) {
      case DType::f64: all.push_back(load(i, double{})); break;
      case DType::f32: all.push_back(static_cast<double>(load(i, float{}))); break;
      case DType::bf16: all.push_back(static_cast<double>(to_float(load(i, BFloat16{})))); break;
      case DType::f16: all.push_back(static_cast<double>(to_float(load(i, Float16{})))); break;
      default: all.push_back(load(i, std::uint16_t{})); break;
    }
  }
  return all;
}

template <class T>
std::vector<std::byte> as_bytes_of(const std::vector<T>& values) {
  std::vector<std::byte> bytes(values.size() * sizeof(T));
  if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

}  // namespace

Pair::Pair(Compute& gpu, DType dtype, const Shape& shape, std::vector<std::byte> bytes)
    : bytes_(std::move(bytes)), host_({.data = bytes_.data(), .shape = shape, .dtype = dtype}), compute_(&gpu) {
  gpu_ = memory_.make(gpu, dtype, shape, "a check");
  gpu.copy(host_, gpu_);
}

void Pair::narrow(DType dtype) {
  const std::span floats(static_cast<float*>(host_.data), static_cast<std::size_t>(host_.elements()));
  std::vector<std::uint16_t> halves(floats.size());
  to_half(dtype == DType::bf16 ? Precision::bf16 : Precision::f16, floats, 1, halves);
  gpu_ = memory_.make(*compute_, dtype, host_.shape, "a check");
  compute_->copy({.data = halves.data(), .shape = host_.shape, .dtype = dtype}, gpu_);
  std::ranges::transform(numbers(), floats.begin(), [](double value) { return static_cast<float>(value); });
}

std::vector<std::byte> Pair::read() const {
  std::vector<std::byte> bytes(gpu_.bytes());
  compute_->read(gpu_, bytes.data());
  return bytes;
}

std::vector<double> Pair::numbers() const {
  return as_doubles(gpu_, read().data());
}

double Pair::difference() const {
  const std::vector<double> a = as_doubles(host_, bytes_.data()), b = numbers();
  double apart = 0, largest = 1e-30;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (std::isnan(a[i]) && std::isnan(b[i])) continue;
    if (!std::isfinite(a[i]) || !std::isfinite(b[i])) return INFINITY;
    apart = std::max(apart, std::abs(a[i] - b[i]));
    largest = std::max(largest, std::abs(a[i]));
  }
  return apart / largest;
}

void Pair::require_near(double most, const std::string& what) const {
  const double found = difference();
  require(found <= most, fmt::format("{} differs from the host's by {:.2g}, {:.2g} is allowed", what, found, most));
}

void Pair::require_same_bits(const std::string& what) const {
  if (same_bits()) return;
  throw Wrong(fmt::format("{} has other bits than on the host (difference {:.2g})", what, difference()));
}

void Both::run(const Operation& operation) {
  operation(*cpu_, [this](const Pair& pair) -> const Tensor& { return pair.of(*cpu_); });
  run_on_gpu(operation);
}

void Both::run_on_gpu(const Operation& operation) {
  operation(*gpu_, [this](const Pair& pair) -> const Tensor& { return pair.of(*gpu_); });
}

double Both::time(Line& line, const Operation& operation) {
  wait();
  return line.time([&] {
    run_on_gpu(operation);
    wait();
  });
}

void Both::wait() {
  float number = 0;
  const Tensor one = one_number_.make(*gpu_, DType::f32, {1}, "a check");
  gpu_->read(one, &number);
}

std::vector<float> Both::numbers(std::int64_t count, float bound) {
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = random_.symmetric(bound);
  return values;
}

Pair Both::floats(const Shape& shape, const std::vector<float>& values) {
  return {*gpu_, DType::f32, shape, as_bytes_of(values)};
}

Pair Both::items(DType dtype, const Shape& shape) {
  if (dtype == DType::f32) return floats(shape);
  std::vector<std::uint16_t> halves(static_cast<std::size_t>(shape.elements()));
  to_half(dtype == DType::bf16 ? Precision::bf16 : Precision::f16, numbers(shape.elements()), 1, halves);
  return {*gpu_, dtype, shape, as_bytes_of(halves)};
}

Pair Both::kept(DType items, const Shape& shape) {
  Pair pair = floats(shape);
  if (gpu_->kept(items) != DType::f32) pair.narrow(gpu_->kept(items));
  return pair;
}

Pair Both::integers(const std::vector<std::int32_t>& values) {
  return {*gpu_, DType::i32, {static_cast<std::int64_t>(values.size())}, as_bytes_of(values)};
}

Pair Both::names(std::int64_t count, std::uint64_t bound) {
  std::vector<std::int32_t> all;
  for (std::int64_t i = 0; i < count; ++i) all.push_back(static_cast<std::int32_t>(random_.below(bound)));
  return integers(all);
}

Pair Both::doubles(std::int64_t count, double value) {
  return {*gpu_, DType::f64, {count}, as_bytes_of(std::vector<double>(static_cast<std::size_t>(count), value))};
}

Pair Both::choices(const Shape& shape) {
  return {*gpu_, DType::u16, shape,
          as_bytes_of(std::vector<std::uint16_t>(static_cast<std::size_t>(shape.elements())))};
}

double tolerance(DType dtype) {
  if (dtype == DType::bf16) return 1e-2;
  return dtype == DType::f16 ? 2e-3 : 1e-5;
}

std::string speed(double flops, double seconds) {
  return fmt::format("{:.2f} TFLOP/s", flops / seconds / 1e12);
}
std::string bandwidth(double bytes, double seconds) {
  return fmt::format("{:.1f} GB/s", bytes / seconds / 1e9);
}

}  // namespace kolo::smoke
