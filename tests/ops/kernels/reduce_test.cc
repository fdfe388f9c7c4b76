#include "ops/kernels/reduce.h"
#include "ops/kernels/copy.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "tests/ops/kernels/element_types.h"
#include "tests/ops/kernels/reference_reduce.h"

namespace kolo {
namespace {

template <class T>
std::vector<std::vector<T>> make_inputs(std::size_t ranks, std::size_t count, std::uint64_t seed) {
  std::vector<std::vector<T>> inputs(ranks, std::vector<T>(count));
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    for (std::size_t i = 0; i < count; ++i) inputs[rank][i] = element_value<T>(seed, rank, 0, i);
  }
  return inputs;
}

template <class T>
std::vector<T> reduced(const Reduction& how, const std::vector<std::vector<T>>& inputs) {
  std::vector<const void*> sources;
  for (const auto& input : inputs) sources.push_back(input.data());
  std::vector<T> out(inputs[0].size());
  std::array<void*, 1> destinations{out.data()};
  reduce(how, sources, destinations, out.size());
  return out;
}

template <class T>
void expect_reference(const Reduction& how, std::size_t ranks, std::size_t count) {
  const auto inputs = make_inputs<T>(ranks, count, 7);
  const std::vector<T> out = reduced(how, inputs);
  std::vector<T> values(ranks);
  for (std::size_t i = 0; i < count; ++i) {
    for (std::size_t rank = 0; rank < ranks; ++rank) values[rank] = inputs[rank][i];
    const T expected = reference_reduce<T>(how, values);
    ASSERT_EQ(0, std::memcmp(&expected, &out[i], sizeof(T)))
        << to_string(how.op) << " " << to_string(how.dtype) << ", element " << i << " of " << count << ", " << ranks
        << " ranks";
  }
}

template <class T>
T reduce_one(const Reduction& how, std::vector<T> values) {
  std::vector<const void*> sources;
  for (const T& value : values) sources.push_back(&value);
  T out{};
  std::array<void*, 1> destinations{&out};
  reduce(how, sources, destinations, 1);
  return out;
}

TEST(Reduce, MatchesTheReferenceBitForBit) {
  for (const DType dtype : all_types) {
    for (const ReduceOp op : all_reduce_ops) {
      if (!reducible(op, dtype)) continue;
      for (const int ranks : {1, 2, 3, 4, 8, 9, 33}) {
        for (const std::size_t count : {0u, 1u, 3u, 1000u, 1024u, 2051u}) {
          with_type(dtype, [&]<class T>() {
            if constexpr (!std::is_same_v<T, bool>) {  // std::vector<bool> has no elements to point at: below
              expect_reference<T>({dtype, op, 1, 1, ranks}, static_cast<std::size_t>(ranks), count);
            }
          });
        }
      }
    }
  }
}

TEST(Reduce, KnowsWhatCanBeReduced) {
  for (const ReduceOp op : all_reduce_ops) {
    if (op == ReduceOp::adasum) continue;
    const bool arithmetic = !is_bitwise(op) && !is_logical(op);
    for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16})
      EXPECT_EQ(reducible(op, dtype), arithmetic);
    for (const DType dtype :
         {DType::i64, DType::i32, DType::i16, DType::i8, DType::u64, DType::u32, DType::u16, DType::u8}) {
      EXPECT_TRUE(reducible(op, dtype));
      EXPECT_EQ(scalable(op, dtype), arithmetic);
    }
    EXPECT_EQ(reducible(op, DType::boolean), op != ReduceOp::sum && op != ReduceOp::average);
    EXPECT_FALSE(scalable(op, DType::boolean));
  }
  for (const DType dtype : all_types) EXPECT_FALSE(reducible(ReduceOp::adasum, dtype)) << "not element by element";
  EXPECT_TRUE(scalable(ReduceOp::adasum, DType::f16));
}

std::uint8_t truth(ReduceOp op, std::vector<std::uint8_t> bytes) {
  return reduce_one<std::uint8_t>({DType::boolean, op}, std::move(bytes));
}

TEST(Reduce, BoolsAreTrueUnlessTheirByteIsZero) {
  for (const ReduceOp all : {ReduceOp::min, ReduceOp::product, ReduceOp::bit_and, ReduceOp::logical_and}) {
    EXPECT_EQ(truth(all, {1, 1, 1}), 1);
    EXPECT_EQ(truth(all, {1, 2, 4}), 1);
    EXPECT_EQ(truth(all, {1, 0, 1}), 0);
    EXPECT_EQ(truth(all, {255}), 1);
  }
  for (const ReduceOp any : {ReduceOp::max, ReduceOp::bit_or, ReduceOp::logical_or}) {
    EXPECT_EQ(truth(any, {0, 0, 0}), 0);
    EXPECT_EQ(truth(any, {0, 255, 1}), 1);
    EXPECT_EQ(truth(any, {128}), 1);
  }
  EXPECT_EQ(truth(ReduceOp::bit_xor, {1, 1, 1}), 1);
  EXPECT_EQ(truth(ReduceOp::bit_xor, {1, 255}), 0);
}

TEST(Reduce, LogicalOpsOfIntegersGiveZeroOrOne) {
  EXPECT_EQ(reduce_one<std::int32_t>({DType::i32, ReduceOp::logical_and}, {2, -4}), 1)
      << "the bits of 2 and 4 are disjoint";
  EXPECT_EQ(reduce_one<std::int32_t>({DType::i32, ReduceOp::logical_and}, {2, 0}), 0);
  EXPECT_EQ(reduce_one<std::uint64_t>({DType::u64, ReduceOp::logical_or}, {0, std::uint64_t{1} << 63}), 1u);
  EXPECT_EQ(reduce_one<std::int16_t>({DType::i16, ReduceOp::logical_or}, {-7}), 1) << "alone, too";
}

TEST(Reduce, ScalesInTheAccumulatorsType) {
  for (const DType dtype : reducible_types) {
    for (const ReduceOp op : reduce_ops) {
      for (const auto& [prescale, postscale] : {std::pair{0.5, 1.0}, {1.0, 3.0}, {0.1, 0.3}, {-2.5, 1e-3}}) {
        with_type(dtype, [&]<class T>() {
          if constexpr (!std::is_same_v<T, bool>) expect_reference<T>({dtype, op, prescale, postscale, 3}, 3, 1500);
        });
      }
    }
  }
}

TEST(Reduce, IntegerAverageTruncatesTheExactSumTowardZero) {
  const Reduction i32{DType::i32, ReduceOp::average, 1, 1, 2};
  EXPECT_EQ(reduce_one<std::int32_t>(i32, {3, 4}), 3);
  EXPECT_EQ(reduce_one<std::int32_t>(i32, {-3, -4}), -3);
  EXPECT_EQ(reduce_one<std::int32_t>(i32, {INT32_MAX, INT32_MAX}), INT32_MAX);
  const Reduction i64{DType::i64, ReduceOp::average, 1, 1, 3};
  EXPECT_EQ(reduce_one<std::int64_t>(i64, {INT64_MAX, INT64_MAX, INT64_MAX}), INT64_MAX);
  EXPECT_EQ(reduce_one<std::int64_t>(i64, {INT64_MIN, INT64_MIN, INT64_MIN}), INT64_MIN);
  const Reduction u64{DType::u64, ReduceOp::average, 1, 1, 2};
  EXPECT_EQ(reduce_one<std::uint64_t>(u64, {UINT64_MAX, UINT64_MAX}), UINT64_MAX);
}

TEST(Reduce, IntegerSumsAndProductsWrapAround) {
  EXPECT_EQ(reduce_one<std::int32_t>({DType::i32, ReduceOp::sum}, {INT32_MAX, 1}), INT32_MIN);
  EXPECT_EQ(reduce_one<std::int64_t>({DType::i64, ReduceOp::sum}, {INT64_MAX, 1}), INT64_MIN);
  EXPECT_EQ(reduce_one<std::int64_t>({DType::i64, ReduceOp::product}, {INT64_MAX, 2}), -2);
  EXPECT_EQ(reduce_one<std::uint8_t>({DType::u8, ReduceOp::sum}, {255, 2}), 1);
}

TEST(Reduce, ScaledIntegersTruncateAndSaturate) {
  EXPECT_EQ(reduce_one<std::int32_t>({DType::i32, ReduceOp::sum, 0.5}, {3, 3}), 2);
  EXPECT_EQ(reduce_one<std::int32_t>({DType::i32, ReduceOp::sum, 1, 0.5}, {3, 4}), 3);
  EXPECT_EQ(reduce_one<std::int64_t>({DType::i64, ReduceOp::max, 1, 1e30}, {1, 2}), INT64_MAX);
  EXPECT_EQ(reduce_one<std::int64_t>({DType::i64, ReduceOp::max, 1, -1e30}, {1, 2}), INT64_MIN);
}

TEST(Reduce, MinAndMaxPropagateNaN) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const ReduceOp op : {ReduceOp::min, ReduceOp::max}) {
    for (std::size_t position = 0; position < 3; ++position) {
      std::vector<float> values{1, 2, 3};
      values[position] = nan;
      EXPECT_TRUE(std::isnan(reduce_one<float>({DType::f32, op}, values)));
      EXPECT_TRUE(std::isnan(reduce_one<double>({DType::f64, op}, {values.begin(), values.end()})));
      std::vector<Float16> halves;
      for (const float value : values) halves.push_back(to_float16(value));
      EXPECT_TRUE(std::isnan(to_float(reduce_one<Float16>({DType::f16, op}, halves))));
    }
  }
}

TEST(Reduce, HalfPrecisionRoundsOnce) {
  // 2048 + 1 + 1: rounding to f16 after each addition would lose both ones.
  const std::vector<Float16> values{to_float16(2048), to_float16(1), to_float16(1)};
  EXPECT_EQ(to_float(reduce_one<Float16>({DType::f16, ReduceOp::sum}, values)), 2050.0f);
}

TEST(Reduce, WritesAllDestinationsInPlace) {
  for (const std::size_t count : {5u, 5000u}) {
    auto inputs = make_inputs<float>(3, count, 1);
    const std::vector<float> expected = reduced({DType::f32, ReduceOp::sum}, inputs);
    std::vector<float> extra(count);
    const std::array<const void*, 3> sources{inputs[0].data(), inputs[1].data(), inputs[2].data()};
    const std::array<void*, 4> destinations{inputs[0].data(), inputs[1].data(), inputs[2].data(), extra.data()};
    reduce({DType::f32, ReduceOp::sum}, sources, destinations, count);
    for (const auto& input : inputs) EXPECT_EQ(input, expected);
    EXPECT_EQ(extra, expected);
  }
}

template <class T>
void expect_same_past_the_cache(const Reduction& how, std::size_t ranks, std::size_t count, std::size_t shift) {
  const auto inputs = make_inputs<T>(ranks, count, 11);
  const std::vector<T> expected = reduced(how, inputs);
  const std::size_t bytes = count * sizeof(T);
  std::vector<const void*> sources;
  for (const auto& input : inputs) sources.push_back(input.data());
  constexpr std::array<std::array<std::size_t, 2>, 5> cached_and_streamed{{{0, 1}, {1, 1}, {2, 1}, {0, 2}, {0, 3}}};
  for (const auto [cached, streamed] : cached_and_streamed) {
    std::vector<std::vector<std::byte>> outputs(cached + streamed,
                                                std::vector<std::byte>(bytes + shift + 1, std::byte{0x5a}));
    std::vector<void*> destinations;
    for (auto& output : outputs) destinations.push_back(output.data() + shift);
    reduce(how, sources, std::span(destinations).first(cached), count, std::span(destinations).last(streamed));
    finish_copies();
    for (const auto& output : outputs) {
      ASSERT_EQ(0, std::memcmp(expected.data(), output.data() + shift, bytes))
          << to_string(how.dtype) << " " << to_string(how.op);
      ASSERT_EQ(output.back(), std::byte{0x5a});
      if (shift > 0) {
        ASSERT_EQ(output[shift - 1], std::byte{0x5a});
      }
    }
  }
}

TEST(Reduce, WritesTheSamePastTheCache) {
  for (const DType dtype : all_types) {
    for (const ReduceOp op : all_reduce_ops) {
      if (!reducible(op, dtype)) continue;
      with_type(dtype, [&]<class T>() {
        if constexpr (!std::is_same_v<T, bool>) {
          for (const std::size_t count : {1u, 200u, 5003u}) {
            for (const std::size_t shift : {0u, 8u, 3u})
              expect_same_past_the_cache<T>({dtype, op, 1, 1, 2}, 2, count, shift);
          }
          expect_same_past_the_cache<T>({dtype, op, 1, 1, 3}, 3, 1000, 16);
        }
      });
    }
  }
}

TEST(Reduce, ManySourcesMayEachBeTheDestination) {
  constexpr std::size_t ranks = 19, count = 2500;
  const Reduction how{DType::f32, ReduceOp::average, 0.3, 1.7, ranks};
  const auto inputs = make_inputs<float>(ranks, count, 6);
  const std::vector<float> expected = reduced(how, inputs);
  for (std::size_t place = 0; place < ranks; ++place) {
    auto in_place = inputs;
    std::vector<const void*> sources;
    for (const auto& input : in_place) sources.push_back(input.data());
    const std::array<void*, 1> destinations{in_place[place].data()};
    reduce(how, sources, destinations, count);
    EXPECT_EQ(in_place[place], expected) << "source " << place;
  }
}

TEST(Reduce, ResultsDoNotDependOnCutsOrAlignment) {
  constexpr std::size_t count = 3000;
  const Reduction how{DType::f32, ReduceOp::average, 0.3, 1.7, 3};
  const auto inputs = make_inputs<float>(3, count, 5);
  const std::vector<float> whole = reduced(how, inputs);
  std::mt19937 random(3);
  for (std::size_t shift = 0; shift < 8; ++shift) {
    std::vector<std::vector<std::byte>> shifted(4, std::vector<std::byte>(count * sizeof(float) + shift));
    for (std::size_t rank = 0; rank < 3; ++rank) {
      std::memcpy(shifted[rank].data() + shift, inputs[rank].data(), count * sizeof(float));
    }
    for (std::size_t begin = 0, length = 0; begin < count; begin += length) {
      length = std::min<std::size_t>(1 + random() % 700, count - begin);
      std::vector<std::byte*> at;
      for (auto& bytes : shifted) at.push_back(bytes.data() + shift + begin * sizeof(float));
      const std::array<const void*, 3> sources{at[0], at[1], at[2]};
      const std::array<void*, 1> destinations{at[3]};
      reduce(how, sources, destinations, length);
    }
    EXPECT_EQ(0, std::memcmp(whole.data(), shifted[3].data() + shift, count * sizeof(float)));
  }
}

}  // namespace
}  // namespace kolo
