#include "models/compute/half.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <vector>

#include "models/compute/random.h"

namespace kolo::models {
namespace {

float there_and_back(Precision precision, float value, float factor = 1) {
  std::uint16_t half = 0;
  float back = 0;
  to_half(precision, std::span(&value, 1), factor, std::span(&half, 1));
  from_half(precision, std::span(&half, 1), std::span(&back, 1));
  return back;
}

/// What the type's bits say: every one of the 65 536 comes back as it is, and rounds to itself.
TEST(Half, EveryValueOfTheTypesIsExact) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    const auto exponent = static_cast<int>(bits >> 10 & 31), mantissa = static_cast<int>(bits & 1023);
    float value = 0;
    from_half(Precision::f16, std::span(&half, 1), std::span(&value, 1));
    if (exponent == 31 && mantissa != 0) {
      EXPECT_TRUE(std::isnan(value));
      continue;
    }
    const double magnitude = exponent == 31  ? INFINITY
                             : exponent == 0 ? std::ldexp(mantissa, -24)
                                             : std::ldexp(1024 + mantissa, exponent - 25);
    EXPECT_EQ(value, bits < 32768 ? magnitude : -magnitude) << bits;
    std::uint16_t again = 0;
    to_half(Precision::f16, std::span(&value, 1), 1, std::span(&again, 1));
    EXPECT_EQ(again, half);
  }
}

/// Random floats of every size go to the nearest of the two neighbours, ties to the even one.
TEST(Half, RoundsToNearest) {
  Random random(7);
  for (int i = 0; i < 200000; ++i) {
    const auto value = std::bit_cast<float>(static_cast<std::uint32_t>(random.next()));
    if (!std::isfinite(value)) continue;
    for (const Precision precision : {Precision::bf16, Precision::f16}) {
      const int digits = precision == Precision::bf16 ? 8 : 11, least = precision == Precision::bf16 ? -126 : -14;
      int exponent = 0;
      std::frexp(value, &exponent);
      const double unit = std::ldexp(1.0, std::max(exponent - 1, least) - digits + 1);
      double wanted = std::nearbyint(value / unit) * unit;
      if (std::abs(wanted) > (precision == Precision::bf16 ? 3.3895313892515355e38 : 65504))
        wanted = wanted > 0 ? INFINITY : -INFINITY;
      ASSERT_EQ(there_and_back(precision, value), static_cast<float>(wanted)) << value;
    }
  }
}

TEST(Half, Ties) {
  EXPECT_EQ(there_and_back(Precision::bf16, 1 + 0x1p-8f), 1);
  EXPECT_EQ(there_and_back(Precision::bf16, 1 + 3 * 0x1p-8f), 1 + 4 * 0x1p-8f);
  EXPECT_EQ(there_and_back(Precision::f16, 1 + 0x1p-11f), 1);
  EXPECT_EQ(there_and_back(Precision::f16, 0x1p-25f), 0);
  EXPECT_EQ(there_and_back(Precision::f16, 3 * 0x1p-25f), 4 * 0x1p-25f);
}

TEST(Half, FactorsAndSpecialValues) {
  EXPECT_EQ(there_and_back(Precision::bf16, 3, 0.5f), 1.5f);
  EXPECT_EQ(there_and_back(Precision::f16, 1e6f, 0.01f), 10000);
  for (const Precision precision : {Precision::bf16, Precision::f16}) {
    EXPECT_EQ(there_and_back(precision, INFINITY), INFINITY);
    EXPECT_EQ(there_and_back(precision, -INFINITY), -INFINITY);
    EXPECT_TRUE(std::isnan(there_and_back(precision, NAN)));
    EXPECT_TRUE(std::isnan(there_and_back(precision, std::bit_cast<float>(0x7f800001u))));
  }
  EXPECT_EQ(there_and_back(Precision::f16, 65520), INFINITY);
  EXPECT_EQ(there_and_back(Precision::f16, 65519), 65504);
}

}  // namespace
}  // namespace kolo::models
