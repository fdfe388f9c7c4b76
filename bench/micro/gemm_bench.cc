// Times the matrix products of one training step of the MLP 784-1024-1024-10 at a batch of 64, on one thread:
//
//     gemm-bench-onednn [REPEATS]     (also -openblas, -plain; default 101)
//
// Each product runs REPEATS times after 5 that do not count; the median is printed.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "models/compute/buffer.h"
#include "models/compute/gemm.h"

namespace {

using kolo::models::AlignedFloats;
using kolo::models::GemmShape;

struct Case {
  std::string_view layer, pass;
  GemmShape shape;
};

std::vector<Case> cases() {
  constexpr std::int64_t batch = 64;
  std::vector<Case> all;
  struct Layer {
    std::string_view name;
    std::int64_t in, out;
  };
  for (const auto& [name, in, out] :
       {Layer{"784 → 1024", 784, 1024}, {"1024 → 1024", 1024, 1024}, {"1024 → 10", 1024, 10}}) {
    all.push_back({name, "y = x·wᵀ", {.m = batch, .n = out, .k = in, .transpose_b = true}});
    all.push_back({name, "dw = dyᵀ·x", {.m = out, .n = in, .k = batch, .transpose_a = true}});
    if (in != 784) all.push_back({name, "dx = dy·w", {.m = batch, .n = in, .k = out}});
  }
  return all;
}

AlignedFloats filled(std::int64_t elements) {
  AlignedFloats values(static_cast<std::size_t>(elements));
  std::uint32_t state = 1;
  for (float& value : values) {
    state = state * 1664525 + 1013904223;
    value = static_cast<float>(state >> 8) * 0x1p-24f - 0.5f;
  }
  return values;
}

double median_us(const GemmShape& shape, int repeats) {
  const AlignedFloats a = filled(shape.m * shape.k), b = filled(shape.k * shape.n);
  AlignedFloats c(static_cast<std::size_t>(shape.m * shape.n));
  std::vector<double> times;
  for (int i = -5; i < repeats; ++i) {
    const auto start = std::chrono::steady_clock::now();
    kolo::models::gemm(shape, a.data(), b.data(), c.data());
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - start;
    if (i >= 0) times.push_back(took.count());
  }
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
}

}  // namespace

int main(int argc, char** argv) {
  const int repeats = argc > 1 ? std::max(1, std::atoi(argv[1])) : 101;
  fmt::print("{}, one thread, median of {}\n{:<12}  {:<11} {:>9} {:>9}\n", kolo::models::gemm_backend(), repeats,
             "layer", "product", "us", "GFLOP/s");
  double total = 0, work = 0;
  for (const auto& [layer, pass, shape] : cases()) {
    const double us = median_us(shape, repeats), flop = 2.0 * static_cast<double>(shape.m * shape.n * shape.k);
    fmt::print("{:<12}  {:<11} {:>9.1f} {:>9.1f}\n", layer, pass, us, flop / us * 1e-3);
    total += us;
    work += flop;
  }
  fmt::print("{:<12}  {:<11} {:>9.1f} {:>9.1f}\n", "all", "", total, work / total * 1e-3);
}
