// Weights from dot products, and the arithmetic on slices, against adasum computed directly in long double.

#include "ops/adasum/weights.h"

#include <gtest/gtest.h>

#include <cfloat>
#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

#include "ops/adasum/slices.h"
#include "tests/ops/adasum/reference_adasum.h"
#include "tests/ops/kernels/element_types.h"
#include "tests/ops/kernels/reference_reduce.h"

namespace kolo {
namespace {

/// The weights of vectors with these products (upper triangle, column by column), all of exponent 0.
std::vector<double> weights_of(std::vector<double> products, std::size_t ranks, double scale = 1) {
  std::vector<double> exponents(ranks, 0.0);
  std::vector<double> factors;
  for (const AdasumWeight& weight : adasum_weights({exponents, products}, scale)) {
    EXPECT_EQ(weight.exponent, 0);
    factors.push_back(weight.factor);
  }
  return factors;
}

using Weights = std::vector<double>;

TEST(AdasumWeights, OfOneVector) {
  EXPECT_EQ(weights_of({7}, 1), Weights{1});
  EXPECT_EQ(weights_of({0}, 1, 0.25), Weights{0.25});
}

TEST(AdasumWeights, OrthogonalVectorsAreAdded) {
  EXPECT_EQ(weights_of({4, 0, 9}, 2), (Weights{1, 1}));
  EXPECT_EQ(weights_of({4, 0, 9, 0, 0, 25}, 3), (Weights{1, 1, 1}));
  EXPECT_EQ(weights_of({4, 0, 9}, 2, -3), (Weights{-3, -3}));
}

TEST(AdasumWeights, EqualVectorsAreAveraged) {
  EXPECT_EQ(weights_of({4, 4, 4}, 2), (Weights{0.5, 0.5}));
  EXPECT_EQ(weights_of({4, 4, 4, 4, 4, 4, 4, 4, 4, 4}, 4), (Weights{0.25, 0.25, 0.25, 0.25}));
  EXPECT_EQ(weights_of({4, 4, 4, 4, 4, 4}, 3), (Weights{0.25, 0.25, 0.5}))
      << "the odd one out counts as much as a pair";
}

TEST(AdasumWeights, ParallelVectorsAreAveraged) {
  EXPECT_EQ(weights_of({4, 12, 36}, 2), (Weights{1 - 1.5, 1 - 1 / 6.0})) << "of v and 3 v: -1/2 + 5/2 = 2";
}

TEST(AdasumWeights, ZeroVectorsAddNothing) {
  const auto other_than_zero = [](std::vector<double> products, std::size_t ranks, std::size_t rank) {
    return weights_of(std::move(products), ranks)[rank];
  };
  EXPECT_EQ(other_than_zero({4, 0, 0}, 2, 0), 1);
  EXPECT_EQ(other_than_zero({0, 0, 4}, 2, 1), 1);
  EXPECT_EQ(other_than_zero({0, 0, 0, 0, 0, 4}, 3, 2), 1);
  for (const double weight : weights_of({0, 0, 0}, 2)) EXPECT_TRUE(std::isfinite(weight));
}

TEST(AdasumWeights, OppositeVectorsCancelAndCountAsZeroAbove) {
  // g and -g make zero; the third, in their direction, is the result as it is.
  const Weights weights = weights_of({1, -1, 1, 1, -1, 1}, 3);
  EXPECT_EQ(weights[0], weights[1]);
  EXPECT_EQ(weights[2], 1);
  // What rounding leaves of a vector is no direction either: 0.1 + 0.2 - 0.3 in the units of the products.
  const double rest = 0.1 + 0.2 - 0.3;
  const Weights rounded = weights_of({1, -1, 1 + rest, 1, -1, 1}, 3);
  EXPECT_NEAR(rounded[0], rounded[1], 1e-12);
  EXPECT_NEAR(rounded[2], 1, 1e-6);
}

TEST(AdasumWeights, WhatIsNoNumberShows) {
  const double nan = std::numeric_limits<double>::quiet_NaN(), infinite = std::numeric_limits<double>::infinity();
  for (const double weight : weights_of({nan, nan, 1}, 2)) EXPECT_TRUE(std::isnan(weight));
  for (const double weight : weights_of({infinite, infinite, 1}, 2)) EXPECT_FALSE(std::isfinite(weight));
  for (const double weight : weights_of({1, nan, nan, 0, nan, 1}, 3)) EXPECT_TRUE(std::isnan(weight));
}

/// All vectors cut into `parts` slices, as ranks would; tests that the order of summation is the only thing that
/// differs.
template <class T>
std::vector<T> adasum_of(const std::vector<std::vector<T>>& vectors, std::size_t parts, double scale = 1) {
  const DType dtype = DTypeOf<T>::value;
  const std::size_t ranks = vectors.size(), count = vectors[0].size(), each = (count + parts - 1) / parts;
  std::vector<double> exponents(ranks, -1e9), products(Gram::product_count(ranks)), part(products.size());
  const auto for_each_part = [&](auto visit) {
    for (std::size_t begin = 0; begin < count; begin += each) {
      std::vector<const std::byte*> slices;
      for (const auto& vector : vectors) slices.push_back(reinterpret_cast<const std::byte*>(vector.data() + begin));
      visit(begin, slices, static_cast<std::int64_t>(std::min(each, count - begin)));
    }
  };
  for_each_part([&](std::size_t, const auto& slices, std::int64_t length) {
    for (std::size_t r = 0; r < ranks; ++r) {
      exponents[r] = std::max(exponents[r], exponent_of(dtype, slices[r], length));
    }
  });
  for_each_part([&](std::size_t, const auto& slices, std::int64_t length) {
    multiply_slices(dtype, slices, length, {exponents, part});
    for (std::size_t i = 0; i < part.size(); ++i) products[i] += part[i];
  });
  const auto weights = adasum_weights({exponents, products}, scale);
  std::vector<T> sum(count);
  for_each_part([&](std::size_t begin, const auto& slices, std::int64_t length) {
    add_weighted(dtype, slices, length, weights, reinterpret_cast<std::byte*>(sum.data() + begin));
  });
  return sum;
}

template <class T>
void expect_adasum(const std::vector<std::vector<T>>& vectors, const std::string& what) {
  std::vector<LongVector> exact;
  for (const auto& vector : vectors) {
    exact.emplace_back();
    for (const T value : vector) exact.back().push_back(to_long(value));
  }
  const LongVector wanted = reference_adasum(exact);
  long double largest = 0;
  for (const LongVector& vector : exact) largest = std::max(largest, largest_of(vector));
  for (const std::size_t parts : {1u, 3u}) {
    const std::vector<T> found = adasum_of(vectors, parts);
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      ASSERT_LE(std::abs(to_long(found[i]) - wanted[i]), tolerance<T>(wanted[i], largest))
          << what << ", " << vectors.size() << " ranks, " << parts << " parts, element " << i << ": "
          << to_long(found[i]) << " for " << wanted[i];
    }
  }
}

/// Vectors with a part in common, so that they are neither parallel nor orthogonal; of rank r times `magnitudes[r]`.
template <class T>
std::vector<std::vector<T>> make_vectors(std::size_t count, const std::vector<double>& magnitudes,
                                         double common = 0.5) {
  std::vector<std::vector<T>> vectors;
  for (std::size_t rank = 0; rank < magnitudes.size(); ++rank) {
    vectors.emplace_back();
    for (std::size_t i = 0; i < count; ++i) {
      const double value =
          common * element_value<double>(1, 99, 0, i) + (1 - common) * element_value<double>(1, rank, 0, i);
      vectors.back().push_back(from_double<T>(value / 2 * magnitudes[rank]));
    }
  }
  return vectors;
}

template <class T>
class Adasum : public ::testing::Test {};
using Floats = ::testing::Types<double, float, Float16, BFloat16>;
TYPED_TEST_SUITE(Adasum, Floats);

TYPED_TEST(Adasum, MatchesTheFormulaForAnyNumberOfRanks) {
  for (const std::size_t ranks : {1u, 2u, 3u, 4u, 5u, 7u, 16u}) {
    for (const std::size_t count : {1u, 2u, 7u, 511u, 513u, 5000u}) {
      expect_adasum(make_vectors<TypeParam>(count, std::vector<double>(ranks, 1.0)),
                    std::to_string(count) + " elements");
    }
  }
}

TYPED_TEST(Adasum, MatchesTheFormulaForSomeThatAreZero) {
  for (const unsigned zeros : {1u, 2u, 5u, 7u, 15u, 26u, 31u}) {
    std::vector<double> magnitudes;
    for (unsigned rank = 0; rank < 5; ++rank) magnitudes.push_back((zeros >> rank & 1u) != 0 ? 0 : 1);
    expect_adasum(make_vectors<TypeParam>(100, magnitudes), "zeros " + std::to_string(zeros));
  }
}

TYPED_TEST(Adasum, OneAmongZerosComesOutAsItIs) {
  for (std::size_t rank = 0; rank < 3; ++rank) {
    std::vector<double> magnitudes(3, 0.0);
    magnitudes[rank] = 1;
    const auto vectors = make_vectors<TypeParam>(1000, magnitudes);
    const auto found = adasum_of(vectors, 2);
    for (std::size_t i = 0; i < found.size(); ++i) ASSERT_EQ(to_long(found[i]), to_long(vectors[rank][i]));
  }
}

TYPED_TEST(Adasum, EqualVectorsComeOutAsTheyAre) {
  const auto one = make_vectors<TypeParam>(1000, {1.0})[0];
  for (const std::size_t ranks : {2u, 3u, 4u, 8u}) {
    const auto found = adasum_of(std::vector(ranks, one), 1);
    for (std::size_t i = 0; i < found.size(); ++i) {
      const long double exact = to_long(one[i]), rounding = sizeof(TypeParam) == 8 ? 1e-15L : 0;
      ASSERT_LE(std::abs(to_long(found[i]) - exact), rounding * std::abs(exact)) << ranks << " ranks";
    }
  }
}

TYPED_TEST(Adasum, GrowsAsItsInputsDo) {
  const auto vectors = make_vectors<TypeParam>(300, {1.0, 2.0, 0.5});
  const auto plain = adasum_of(vectors, 2), scaled = adasum_of(vectors, 2, 4.0);
  auto larger = vectors;
  for (auto& vector : larger) {
    for (TypeParam& value : vector) value = from_double<TypeParam>(4 * static_cast<double>(to_long(value)));
  }
  const auto of_larger = adasum_of(larger, 2);
  for (std::size_t i = 0; i < plain.size(); ++i) {
    EXPECT_NEAR(static_cast<double>(to_long(scaled[i])), static_cast<double>(to_long(of_larger[i])), 1e-12);
    EXPECT_NEAR(static_cast<double>(to_long(scaled[i])), 4 * static_cast<double>(to_long(plain[i])), 2e-2);
  }
}

TEST(AdasumMagnitudes, OfF32) {
  const double least = FLT_MIN, root = std::sqrt(FLT_MAX), most = FLT_MAX / 2, denormal = FLT_MIN / 1000;
  for (const double magnitude : {denormal, least, root, most}) {
    for (const std::size_t ranks : {2u, 3u, 5u}) {
      expect_adasum(make_vectors<float>(700, std::vector<double>(ranks, magnitude)), "equal");
    }
    expect_adasum(make_vectors<float>(700, {magnitude, 0, magnitude}), "with a zero");
    for (const double other : {denormal, least, root, most}) {
      expect_adasum(make_vectors<float>(700, {magnitude, other}),
                    std::to_string(magnitude) + " and " + std::to_string(other));
      expect_adasum(make_vectors<float>(700, {magnitude, other, magnitude, 1}), "four");
    }
  }
  const std::vector<float> largest(100, FLT_MAX), smallest(100, FLT_MIN);
  EXPECT_EQ(adasum_of<float>({largest, largest}, 1), largest);
  EXPECT_EQ(adasum_of<float>({smallest, smallest}, 1), smallest);
}

TEST(AdasumMagnitudes, OfBFloat16) {
  for (const double magnitude : {1e-37, 1.0, 1e18, 1e38}) {
    for (const double other : {1e-37, 1.0, 1e18, 1e38}) {
      expect_adasum(make_vectors<BFloat16>(700, {magnitude, other, magnitude}), "three");
    }
  }
}

TEST(AdasumMagnitudes, OfF64) {
  const std::vector<double> magnitudes{DBL_MIN, 1e-300, 1e-160, 1.0, 1e160, 1e300, 1e307};
  for (const double magnitude : magnitudes) {
    for (const std::size_t ranks : {2u, 3u, 5u}) {
      expect_adasum(make_vectors<double>(700, std::vector<double>(ranks, magnitude)), "equal");
    }
    expect_adasum(make_vectors<double>(700, {0, magnitude, magnitude}), "with a zero");
    for (const double other : magnitudes) {
      expect_adasum(make_vectors<double>(700, {magnitude, other}),
                    std::to_string(magnitude) + " and " + std::to_string(other));
      expect_adasum(make_vectors<double>(700, {other, magnitude, 1, magnitude}), "four");
    }
  }
  for (const double value : {DBL_MIN, 1e-320, 1e300, DBL_MAX}) {
    const std::vector<double> same(100, value);
    const auto found = adasum_of<double>({same, same}, 1);
    EXPECT_EQ(found, same) << value;
  }
  // The smaller of two parallel vectors counts by its direction, however small it is.
  const auto found = adasum_of<double>({std::vector<double>(10, 1e300), std::vector<double>(10, 1e-300)}, 2);
  for (const double value : found) EXPECT_NEAR(value / 1e300, 0.5, 1e-12);
}

TEST(AdasumRounding, HappensOnce) {
  // 1 + 2^-11 + 2^-30 is above the middle of two f16, but an f32 between would round it to the middle first, and that
  // to even.
  const std::vector<float> values{1.0f};
  const std::vector<AdasumWeight> weights{{1 + 0x1p-11 + 0x1p-30}};
  const Float16 one = to_float16(1.0f);
  const auto* source = reinterpret_cast<const std::byte*>(&one);
  Float16 found;
  add_weighted(DType::f16, std::span(&source, 1), 1, weights, reinterpret_cast<std::byte*>(&found));
  EXPECT_EQ(to_float(found), 1 + 0x1p-10f);
  for (const auto& [factor, wanted] : {std::pair{1 + 0x1p-11, 1.0f},
                                       {1 + 0x1p-11 - 0x1p-40, 1.0f},
                                       {-1 - 0x1p-11 - 0x1p-40, -1 - 0x1p-10f},
                                       {1e300, std::numeric_limits<float>::infinity()},
                                       {1e-300, 0.0f},
                                       {65519.0, 65504.0f}}) {
    const std::vector<AdasumWeight> other{{factor}};
    add_weighted(DType::f16, std::span(&source, 1), 1, other, reinterpret_cast<std::byte*>(&found));
    EXPECT_EQ(to_float(found), wanted) << factor;
  }
}

}  // namespace
}  // namespace kolo
