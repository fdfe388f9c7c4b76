#include <kolo/float16.h>

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>

namespace kolo {
namespace {

std::uint32_t bits(float value) {
  return std::bit_cast<std::uint32_t>(value);
}

// The compiler's own half precision, where the processor or its run-time library does the conversion.
float reference_to_float(Float16 half) {
  _Float16 number;
  std::memcpy(&number, &half, sizeof number);
  return static_cast<float>(number);
}
Float16 reference_to_float16(float value) {
  const auto number = static_cast<_Float16>(value);
  Float16 half;
  std::memcpy(&half.bits, &number, sizeof number);
  return half;
}

// The nearest bfloat16 by definition: of the two neighbours the closer one, of two equally close ones the even one. In
// f64, where the distances are exact; f32 values beyond the largest bfloat16 count as neighbours of 2^128.
BFloat16 reference_to_bfloat16(float value) {
  const auto lower = static_cast<std::uint16_t>(bits(value) >> 16);
  const auto number = [](std::uint32_t upper_half) {
    const double magnitude =
        (upper_half & 0x7fff) == 0x7f80 ? 0x1p128 : to_float(BFloat16{static_cast<std::uint16_t>(upper_half & 0x7fff)});
    return magnitude;
  };
  const double magnitude = std::fabs(static_cast<double>(value));
  const double below = magnitude - number(lower);
  const double above = number(lower + 1u) - magnitude;
  const bool up = above < below || (above == below && (lower & 1));
  return {static_cast<std::uint16_t>(lower + (up ? 1 : 0))};
}

void expect_rounds_like_the_compiler(float value) {
  const Float16 mine = to_float16(value);
  if (std::isnan(value)) {
    EXPECT_TRUE(std::isnan(to_float(mine)));
    return;
  }
  ASSERT_EQ(mine.bits, reference_to_float16(value).bits) << value << " = 0x" << std::hex << bits(value);
}

TEST(Float16, EveryValueIsExactInF32) {
  for (std::uint32_t i = 0; i <= 0xffff; ++i) {
    const Float16 half{static_cast<std::uint16_t>(i)};
    const float expected = reference_to_float(half);
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(to_float(half))) << i;
    } else {
      ASSERT_EQ(bits(to_float(half)), bits(expected)) << i;
    }
  }
}

TEST(Float16, EveryValueSurvivesTheRoundTrip) {
  for (std::uint32_t i = 0; i <= 0xffff; ++i) {
    const Float16 half{static_cast<std::uint16_t>(i)};
    const Float16 back = to_float16(to_float(half));
    if (std::isnan(to_float(half))) {
      ASSERT_TRUE(std::isnan(to_float(back))) << i;
    } else {
      ASSERT_EQ(back.bits, half.bits) << i;
    }
  }
}

TEST(Float16, TiesGoToEvenBetweenAllNeighbours) {
  for (std::uint32_t i = 0; i < 0x7c00; ++i) {
    const float low = to_float(Float16{static_cast<std::uint16_t>(i)});
    const float high = i == 0x7bff ? 65536.0f : to_float(Float16{static_cast<std::uint16_t>(i + 1)});
    const float middle = low + (high - low) / 2;  // exact: f32 has 13 bits more
    for (const float value : {middle, std::nextafterf(middle, 0), std::nextafterf(middle, 1e9f)}) {
      expect_rounds_like_the_compiler(value);
      expect_rounds_like_the_compiler(-value);
    }
  }
}

TEST(Float16, RoundsSpecialAndRandomValuesLikeTheCompiler) {
  using Limits = std::numeric_limits<float>;
  for (const float value : {0.0f, -0.0f, Limits::infinity(), -Limits::infinity(), Limits::quiet_NaN(), Limits::max(),
                            Limits::lowest(), Limits::min(), Limits::denorm_min(), 65504.0f, 65519.996f, 65520.0f,
                            0x1p-24f, 0x1p-25f, 0x1.000002p-25f, 0x1p-14f, 0x1.ffffp-15f, 1.0f / 3}) {
    expect_rounds_like_the_compiler(value);
  }
  expect_rounds_like_the_compiler(std::bit_cast<float>(0x7f800001u));  // a NaN whose payload lies in the bits that go
  std::mt19937 random(1);
  for (int i = 0; i < 1'000'000; ++i) expect_rounds_like_the_compiler(std::bit_cast<float>(std::uint32_t(random())));
}

TEST(BFloat16, EveryValueSurvivesTheRoundTrip) {
  for (std::uint32_t i = 0; i <= 0xffff; ++i) {
    const BFloat16 number{static_cast<std::uint16_t>(i)};
    EXPECT_EQ(bits(to_float(number)), i << 16);
    const BFloat16 back = to_bfloat16(to_float(number));
    if (std::isnan(to_float(number))) {
      ASSERT_TRUE(std::isnan(to_float(back))) << i;
    } else {
      ASSERT_EQ(back.bits, number.bits) << i;
    }
  }
}

TEST(BFloat16, RoundsToTheNearestTiesToEven) {
  for (std::uint32_t upper = 0; upper < 0x7f80; ++upper) {
    for (const std::uint32_t lower : {0x0000u, 0x0001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      for (const std::uint32_t sign : {0u, 0x80000000u}) {
        const float value = std::bit_cast<float>(sign | upper << 16 | lower);
        ASSERT_EQ(to_bfloat16(value).bits, reference_to_bfloat16(value).bits) << value;
      }
    }
  }
}

TEST(BFloat16, KeepsInfinitiesAndNaNs) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(to_bfloat16(infinity).bits, 0x7f80);
  EXPECT_EQ(to_bfloat16(-infinity).bits, 0xff80);
  EXPECT_EQ(to_bfloat16(std::numeric_limits<float>::max()).bits, 0x7f80);
  for (const std::uint32_t nan : {0x7f800001u, 0x7fffffffu, 0xff800001u, 0xffffffffu}) {
    EXPECT_TRUE(std::isnan(to_float(to_bfloat16(std::bit_cast<float>(nan))))) << std::hex << nan;
  }
}

static_assert(to_float16(1.0f).bits == 0x3c00 && to_float(Float16{0x3c00}) == 1.0f, "usable in constant expressions");
static_assert(to_bfloat16(1.0f).bits == 0x3f80 && to_float(BFloat16{0x3f80}) == 1.0f, "usable in constant expressions");

}  // namespace
}  // namespace kolo
