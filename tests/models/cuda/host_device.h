#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "models/compute/cuda/device.h"

namespace kolo::testing {

/// What tests want of pretended GPUs, and what these have done.
struct HostDevices {
  bool reversed = false;  ///< threads of a block, and blocks, run from last to first
  bool guarded = true;    ///< who touches memory between operations dies, which takes time
  bool library = false;   ///< products come from plain loops, not from the kernel
  std::size_t allocations = 0, launches = 0, waits = 0, products = 0;
  std::vector<std::size_t> kernels;  ///< how often each was launched, by its place in Kernel
};
HostDevices& host_devices();

/// Whether there is a GPU, pretended or real.
bool has_gpu();

/// What pretended ones hold at the moment.
std::size_t host_device_bytes();

/// A block whose threads run one after the other, on the host.
class HostTeam {
 public:
  static constexpr int most_threads = 256, warp = 32;

  HostTeam(int threads, bool reversed, float* shared) : threads_(threads), reversed_(reversed), shared_(shared) {}

  template <class T, int n>
  class Own {
   public:
    Own() {
      for (auto& of_thread : all_) {
        for (T& number : of_thread) number = std::numeric_limits<T>::quiet_NaN();
      }
    }
    T (&of(int thread))[static_cast<std::size_t>(n)] { return all_[thread]; }

   private:
    T all_[most_threads][static_cast<std::size_t>(n)];
  };

  template <int n>
  class Accumulators {
   public:
    Accumulators() {
      for (float& sum : all_) sum = std::numeric_limits<float>::quiet_NaN();
    }
    void zero(int warp) {
      for (int i = 0; i < n * side * side; ++i) square(warp, 0)[i] = 0;
    }
    void store(int warp, int i, float* to, int stride) {
      for (int e = 0; e < side * side; ++e) to[e / side * stride + e % side] = square(warp, i)[e];
    }
    void scale(int warp, int i, const float* factors, int stride) {
      for (int e = 0; e < side * side; ++e) square(warp, i)[e] *= factors[e / side * stride + e % side];
    }
    template <bool a_by_columns, bool b_by_columns>
    void multiply(int warp, int i, const std::uint16_t* a, int a_stride, const std::uint16_t* b, int b_stride) {
      for (int e = 0; e < side * side; ++e) {
        const int row = e / side, column = e % side;
        for (int k = 0; k < side; ++k) {
          const BFloat16 x{a_by_columns ? a[k * a_stride + row] : a[row * a_stride + k]};
          const BFloat16 y{b_by_columns ? b[column * b_stride + k] : b[k * b_stride + column]};
          square(warp, i)[e] += to_float(x) * to_float(y);
        }
      }
    }

   private:
    static constexpr int side = 16, of_warp = n * side * side;
    float* square(int warp, int i) { return all_.data() + warp * of_warp + i * side * side; }

    std::array<float, static_cast<std::size_t>(most_threads / 32 * of_warp)> all_;
  };

  int threads() const { return threads_; }
  float* shared() const { return shared_; }

  template <class Body>
  void run(Body body) const {
    for (int i = 0; i < threads_; ++i) body(reversed_ ? threads_ - 1 - i : i);
  }

  template <class Body>
  void warps(Body body) const {
    for (int i = 0; i < threads_ / warp; ++i) body(reversed_ ? threads_ / warp - 1 - i : i);
  }

  /// As the team of a GPU: within warps by exchanges, then over warps in their order.
  template <class T, class Value, class Join>
  T reduce(Value value, Join join) const {
    std::vector<T> numbers(static_cast<std::size_t>(threads_));
    run([&](int thread) { numbers[static_cast<std::size_t>(thread)] = value(thread); });
    for (std::size_t step = warp / 2; step > 0; step /= 2) {
      const std::vector<T> before = numbers;
      for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = join(before[i], before[i ^ step]);
    }
    T all = numbers[0];
    for (std::size_t i = warp; i < numbers.size(); i += warp) all = join(all, numbers[i]);
    return all;
  }

 private:
  int threads_;
  bool reversed_;
  float* shared_;
};

/// Runs a kernel's whole grid.
template <class Kernel>
void run_grid(const Kernel& kernel, bool reversed) {
  const auto floats = static_cast<std::size_t>(kernel.shared_floats());
  const std::int64_t blocks = kernel.blocks();
  for (std::int64_t i = 0; i < blocks; ++i) {
    // Memory that no block has written is nothing that one may count on.
    std::vector<double> shared((floats + 1) / 2, std::numeric_limits<double>::quiet_NaN());
    float* const numbers = static_cast<float*>(static_cast<void*>(shared.data()));
    for (std::size_t n = 0; n < floats; ++n) numbers[n] = std::numeric_limits<float>::quiet_NaN();
    kernel(HostTeam(Kernel::threads, reversed, numbers), reversed ? blocks - 1 - i : i);
  }
}

}  // namespace kolo::testing
