#include "models/compute/gemm.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <thread>
#include <vector>

#include "models/compute/buffer.h"
#include "models/compute/random.h"

namespace kolo::models {
namespace {

std::vector<float> filled(std::int64_t elements, std::uint64_t stream) {
  Random random(9, stream);
  std::vector<float> values(static_cast<std::size_t>(elements));
  for (float& value : values) value = random.symmetric(1);
  return values;
}

std::string text(const GemmShape& s) {
  return fmt::format("m {} n {} k {} transposed {} {} beta {}", s.m, s.n, s.k, s.transpose_a, s.transpose_b, s.beta);
}

void expect_product(const GemmShape& shape) {
  const auto [m, n, k, transpose_a, transpose_b, beta] = shape;
  const std::vector<float> a = filled(m * k, 1), b = filled(k * n, 2), before = filled(m * n, 3);
  std::vector<float> c = before;
  if (beta == 0) c.assign(c.size(), NAN);  // must not be read
  gemm(shape, a.data(), b.data(), c.data());
  for (std::int64_t row = 0; row < m; ++row) {
    for (std::int64_t column = 0; column < n; ++column) {
      const auto at = static_cast<std::size_t>(row * n + column);
      double sum = static_cast<double>(beta) * before[at];
      for (std::int64_t i = 0; i < k; ++i) {
        sum += static_cast<double>(a[static_cast<std::size_t>(transpose_a ? i * m + row : row * k + i)]) *
               b[static_cast<std::size_t>(transpose_b ? column * k + i : i * n + column)];
      }
      ASSERT_NEAR(c[at], sum, 1e-6 * static_cast<double>(k + 1)) << text(shape) << " at " << row << "," << column;
    }
  }
}

using Extents = std::array<std::int64_t, 3>;

TEST(Gemm, AgreesWithDoublePrecision) {
  for (const auto& [m, n, k] : std::vector<Extents>{
           {1, 1, 1}, {3, 5, 7}, {64, 10, 33}, {10, 64, 17}, {1, 100, 64}, {100, 1, 64}, {65, 67, 129}}) {
    for (const bool transpose_a : {false, true}) {
      for (const bool transpose_b : {false, true}) {
        for (const float beta : {0.0f, 1.0f, 0.5f}) expect_product({m, n, k, transpose_a, transpose_b, beta});
      }
    }
  }
}

/// The product, with A, B and C `offset` (up to 15) floats behind a multiple of 64 bytes.
std::vector<float> product_at(const GemmShape& shape, std::size_t offset) {
  const std::vector<float> a = filled(shape.m * shape.k, 1), b = filled(shape.k * shape.n, 2);
  const auto elements = static_cast<std::size_t>(shape.m * shape.n);
  AlignedFloats a_moved(a.size() + 16), b_moved(b.size() + 16), c(elements + 16);
  std::ranges::copy(a, a_moved.data() + offset);
  std::ranges::copy(b, b_moved.data() + offset);
  gemm(shape, a_moved.data() + offset, b_moved.data() + offset, c.data() + offset);
  return {c.data() + offset, c.data() + offset + elements};
}

const std::vector<GemmShape> shapes_of_training{{.m = 64, .n = 256, .k = 784, .transpose_b = true},
                                                {.m = 64, .n = 10, .k = 256, .transpose_b = true},
                                                {.m = 256, .n = 784, .k = 64, .transpose_a = true},
                                                {.m = 10, .n = 256, .k = 64, .transpose_a = true},
                                                {.m = 64, .n = 256, .k = 10},
                                                {.m = 37, .n = 256, .k = 256}};

TEST(Gemm, SameBitsWhereverMemoryLies) {
  for (const GemmShape& shape : shapes_of_training) {
    const std::vector<float> expected = product_at(shape, 0);
    for (const std::size_t offset : {0u, 1u, 4u, 7u, 13u})
      ASSERT_EQ(product_at(shape, offset), expected) << text(shape);
  }
}

TEST(Gemm, SameBitsOnEveryThread) {
  for (const GemmShape& shape : shapes_of_training) {
    const std::vector<float> expected = product_at(shape, 0);
    std::vector<std::vector<float>> results(4);
    {
      std::vector<std::jthread> threads;
      for (auto& result : results) threads.emplace_back([&result, &shape] { result = product_at(shape, 0); });
    }
    for (const auto& result : results) EXPECT_EQ(result, expected) << text(shape);
  }
}

}  // namespace
}  // namespace kolo::models
