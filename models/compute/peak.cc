#include "models/compute/peak.h"

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "models/compute/buffer.h"
#include "models/compute/gemm.h"

namespace kolo::models {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

double peak_flops(double seconds) {
  const auto start = Clock::now();
  double best = 0;
  for (const std::int64_t size : {256, 512, 768, 1024}) {
    const double flops = 2.0 * static_cast<double>(size * size * size);
    if (best > 0 && (seconds - seconds_since(start)) * best < 3 * flops) break;  // the first call prepares
    const GemmShape shape{.m = size, .n = size, .k = size};
    const auto elements = static_cast<std::size_t>(size * size);
    const AlignedFloats a(elements, 0.5f), b(elements, 0.25f);
    AlignedFloats c(elements);
    gemm(shape, a.data(), b.data(), c.data());
    const auto begin = Clock::now();
    double rate = 0;
    int calls = 0;
    do {
      gemm(shape, a.data(), b.data(), c.data());
      rate = ++calls * flops / seconds_since(begin);
    } while (seconds_since(begin) < seconds / 5 && (seconds - seconds_since(start)) * rate > flops);
    best = std::max(best, rate);
  }
  return best;
}

}  // namespace kolo::models
