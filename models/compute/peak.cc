#include "models/compute/peak.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <vector>

#include "models/compute/buffer.h"
#include "models/compute/random.h"
#include "models/compute/views.h"

namespace kolo::models {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// The product of two squares, and memory for it.
class SquareProduct {
 public:
  SquareProduct(Compute& compute, DType items, std::int64_t size) : compute_(&compute) {
    const Shape square{size, size};
    c_ = memory_[0].make(compute, DType::f32, square, "products that are measured");
    AlignedFloats numbers(static_cast<std::size_t>(std::min(square.elements(), std::int64_t{1} << 22)));
    const auto count = std::ssize(numbers);
    Random random(1);
    for (float& number : numbers) number = random.symmetric(1);
    for (std::int64_t first = 0; first < square.elements(); first += count) {
      compute.copy(view(std::span(numbers)), part_of(c_, first, {count}));
    }
    for (int i : {0, 1}) {
      operands_[i] = memory_[i + 1].make(compute, items, square, "products that are measured");
      if (items == DType::f32)
        compute.copy(c_, operands_[i]);
      else
        compute.cast(c_, operands_[i]);
    }
    read();  // the numbers have been copied
  }

  /// Seconds that it takes so many times.
  double run(int times) {
    const auto begin = Clock::now();
    for (int i = 0; i < times; ++i) compute_->product({}, operands_[0], operands_[1], c_);
    read();
    return seconds_since(begin);
  }

 private:
  void read() {
    float last = 0;
    compute_->read(part_of(c_, c_.elements() - 1, {1}), &last);
  }

  Compute* compute_;
  Buffer memory_[3];
  Tensor operands_[2], c_;
};

}  // namespace

double peak_flops(Compute& compute, DType items, double seconds) {
  const bool host = compute.device().kind == DeviceKind::cpu;
  const std::vector<std::int64_t> sizes =
      host ? std::vector<std::int64_t>{256, 512, 768, 1024} : std::vector<std::int64_t>{2048, 4096, 8192};
  (void)SquareProduct(compute, items, sizes.front()).run(1);  // a GPU's library takes long to begin
  double best = 0, spent = 0;
  for (const std::int64_t size : sizes) {
    const double flops = 2.0 * static_cast<double>(size * size * size);
    if (best > 0 && (seconds - spent) * best < 3 * flops) break;
    SquareProduct product(compute, items, size);
    spent += product.run(1);  // it prepares
    double took = 0, rate = 0;
    for (int times = 1; took == 0 || (took < seconds / 8 && (seconds - spent) * rate > times * flops); times *= 2) {
      const double of_these = product.run(times);
      rate = times * flops / of_these;
      best = std::max(best, rate);
      took += of_these;
      spent += of_these;
    }
  }
  return best;
}

}  // namespace kolo::models
