#pragma once

#include <algorithm>
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
  bool library = false;   ///< products come from plain loops, not from the kernel; attention from a library, too
  std::size_t allocations = 0, launches = 0, waits = 0, products = 0, attentions = 0, copies_beside = 0;
  std::size_t pinned = 0;            ///< areas of the host that they hold
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
  static constexpr int most_threads = 1024, warp = 32;

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

  /// What each warp has, of `count` numbers that nobody has written.
  template <int count>
  class OfWarps {
   public:
    OfWarps() { all_.fill(std::numeric_limits<float>::quiet_NaN()); }
    float* of(int warp) { return all_.data() + warp * count; }
    const float* of(int warp) const { return all_.data() + warp * count; }

   private:
    std::array<float, static_cast<std::size_t>(most_threads / warp * count)> all_;
  };
  template <int m>
  struct Warp {
    static constexpr int rows = 16 * m;

    class RowNumbers : public OfWarps<rows> {
     public:
      void fill(int warp, float value) { std::fill_n(this->of(warp), rows, value); }
      template <class F>
      void set(int warp, F f) {
        for (int i = 0; i < rows; ++i) this->of(warp)[i] = f(i);
      }
      template <class F>
      void change(int warp, F f) {
        for (int i = 0; i < rows; ++i) this->of(warp)[i] = f(this->of(warp)[i]);
      }
      template <class F>
      void change(int warp, const RowNumbers& others, F f) {
        for (int i = 0; i < rows; ++i) this->of(warp)[i] = f(this->of(warp)[i], others.of(warp)[i]);
      }
      template <class F>
      void read(int warp, F f) const {
        for (int i = 0; i < rows; ++i) f(i, this->of(warp)[i]);
      }
    };

    template <int k>
    class Left;

    template <int n>
    class Sums : OfWarps<rows * 8 * n> {
     public:
      static constexpr int columns = 8 * n;
      using OfWarps<rows * columns>::of;

      void fill(int warp, float value) { std::fill_n(this->of(warp), rows * columns, value); }
      template <class F>
      void change(int warp, F f) {
        for (int i = 0; i < rows * columns; ++i) this->of(warp)[i] = f(this->of(warp)[i], i / columns, i % columns);
      }
      template <class F>
      void change_rows(int warp, const RowNumbers& numbers, F f) {
        change(warp, [&](float x, int row, int) { return f(x, numbers.of(warp)[row]); });
      }
      template <class F>
      void join(int warp, const Sums& others, F f) {
        change(warp, [&](float x, int row, int column) {
          return f(x, others.of(warp)[row * columns + column], row, column);
        });
      }
      template <class F>
      void join_rows(int warp, const RowNumbers& numbers, const Sums& others, F f) {
        join(warp, others, [&](float x, float other, int row, int) { return f(x, other, numbers.of(warp)[row]); });
      }
      template <class F>
      void read(int warp, F f) const {
        for (int i = 0; i < rows * columns; i += 2)
          f(i / columns, i % columns, this->of(warp)[i], this->of(warp)[i + 1]);
      }
      template <class F>
      void gather(int warp, RowNumbers& numbers, F f) const {
        for (int i = 0; i < rows * columns; ++i) {
          float& number = numbers.of(warp)[i / columns];
          number = f(number, this->of(warp)[i]);
        }
      }
      template <bool by_rows, int k>
      void multiply(int warp, const Left<k>& left, const std::uint16_t* right, int stride) {
        change(warp, [&](float x, int row, int column) {
          for (int i = 0; i < 16 * k; ++i)
            x += left.of(warp)[row * 16 * k + i] *
                 to_float(BFloat16{by_rows ? right[i * stride + column] : right[column * stride + i]});
          return x;
        });
      }
    };

    template <int k>
    class Left : OfWarps<rows * 16 * k> {
     public:
      using OfWarps<rows * 16 * k>::of;
      void load(int warp, const std::uint16_t* from, int stride) {
        for (int i = 0; i < rows * 16 * k; ++i)
          this->of(warp)[i] = to_float(BFloat16{from[i / (16 * k) * stride + i % (16 * k)]});
      }
      void round(int warp, const Sums<2 * k>& sums) {
        for (int i = 0; i < rows * 16 * k; ++i) this->of(warp)[i] = to_float(to_bfloat16(sums.of(warp)[i]));
      }
    };
  };

  static void fetch(std::uint16_t* to, const std::uint16_t* from, bool there) {
    for (int i = 0; i < 8; ++i) to[i] = there ? from[i] : std::uint16_t{0};
  }
  static void end_fetch() {}
  template <int last>
  static void await_fetched() {}

  int threads() const { return threads_; }
  float* shared() const { return shared_; }

  static std::uint32_t halves(float first, float second) {
    return to_bfloat16(first).bits | std::uint32_t{to_bfloat16(second).bits} << 16;
  }
  static float exp2(float x) { return ::exp2f(x); }
  static float reciprocal(float x) { return 1 / x; }

  template <class Body>
  void run(Body body) const {
    for (int i = 0; i < threads_; ++i) body(reversed_ ? threads_ - 1 - i : i);
  }
  template <class Body>
  void start(Body body) const {
    run(body);
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
