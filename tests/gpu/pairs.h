#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "models/compute/buffer.h"
#include "models/compute/random.h"
#include "models/compute/views.h"
#include "tests/gpu/checks.h"

namespace kolo::smoke {

using namespace models;  // NOLINT(google-build-using-namespace): all that includes this is about them

/// A tensor of the host and one of the GPU, with the same numbers to begin with.
class Pair {
 public:
  Pair() = default;
  Pair(Compute& gpu, DType dtype, const Shape& shape, std::vector<std::byte> bytes);

  const Tensor& of(const Compute& compute) const { return compute.device().kind == DeviceKind::cpu ? host_ : gpu_; }
  const Tensor& host() const { return host_; }
  const Tensor& gpu() const { return gpu_; }

  /// f32 stays so on the host, and becomes another type on the GPU; with numbers that both have.
  void narrow(DType dtype);
  /// What is on the GPU, and all its numbers.
  std::vector<std::byte> read() const;
  std::vector<double> numbers() const;
  /// The largest difference between the two, over the largest number of the host; infinite where only one is a number.
  double difference() const;
  bool same_bits() const { return read() == bytes_; }
  void require_near(double tolerance, const std::string& what) const;
  void require_same_bits(const std::string& what) const;

 private:
  std::vector<std::byte> bytes_;
  Tensor host_{}, gpu_{};
  Compute* compute_ = nullptr;
  Buffer memory_;
};

/// The tensor of a pair that is where an operation runs.
using Of = std::function<const Tensor&(const Pair&)>;
using Operation = std::function<void(Compute& compute, const Of& of)>;

/// The host's Compute and the GPU's, and random tensors for both.
class Both {
 public:
  Compute& cpu() { return *cpu_; }
  Compute& gpu() { return *gpu_; }

  void run(const Operation& operation);
  void run_on_gpu(const Operation& operation);
  /// Runs it on the GPU again; returns the seconds.
  double time(Line& line, const Operation& operation);
  /// Waits for the GPU.
  void wait();

  std::vector<float> numbers(std::int64_t count, float bound = 1);
  Pair floats(const Shape& shape, const std::vector<float>& values);
  Pair floats(const Shape& shape) { return floats(shape, numbers(shape.elements())); }
  /// Of any float type.
  Pair items(DType dtype, const Shape& shape);
  /// What operations pass to each other: Compute::kept() of each device.
  Pair kept(DType items, const Shape& shape);
  Pair integers(const std::vector<std::int32_t>& values);
  /// Below `bound`.
  Pair names(std::int64_t count, std::uint64_t bound);
  Pair doubles(std::int64_t count, double value);
  Pair choices(const Shape& shape);
  Random& random() { return random_; }

 private:
  Random random_{5};
  std::unique_ptr<Compute> cpu_ = make_compute();
  std::unique_ptr<Compute> gpu_ = make_compute({DeviceKind::cuda, 0});
  Buffer one_number_;
};

/// Of sums of some hundred numbers in another order; of 16 bits, a unit of the last place.
double tolerance(DType dtype);

/// "312.5 TFLOP/s".
std::string speed(double flops, double seconds);
std::string bandwidth(double bytes, double seconds);

}  // namespace kolo::smoke
