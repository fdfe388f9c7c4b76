// The index arithmetic of the kernels that pack, unpack and combine, run on the host: every element items exactly once,
// whatever the lengths, addresses and types.

#include "ops/gpu/pack_items.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "ops/gpu/packer.h"
#include "ops/kernels/reduce.h"
#include "tests/ops/kernels/element_types.h"
#include "tests/ops/kernels/reference_reduce.h"
#include "tests/support/environment.h"
#include "tests/support/fake_gpu.h"

namespace kolo {
namespace {

/// The widest vector for every pair of addresses, from its definition: after `head` elements both sides are multiples
/// of their vectors' sizes, and no wider vector has such a head.
TEST(Moves, LanesAreTheWidestThatBothSidesAlignTo) {
  for (const auto& [from_size, to_size] : std::vector<std::pair<int, int>>{
           {1, 1}, {2, 2}, {4, 4}, {8, 8}, {2, 4}, {4, 2}, {1, 8}, {8, 1}, {4, 8}, {8, 2}}) {
    const int wider = std::max(from_size, to_size);
    for (std::uintptr_t from = 64; from < 128; from += static_cast<std::uintptr_t>(from_size)) {
      for (std::uintptr_t to = 64; to < 128; to += static_cast<std::uintptr_t>(to_size)) {
        const auto head_of = [&](int lanes) -> std::int64_t {
          for (int head = 0; head < lanes; ++head) {
            const auto f = from + static_cast<std::uintptr_t>(head * from_size),
                       t = to + static_cast<std::uintptr_t>(head * to_size);
            if (f % static_cast<std::uintptr_t>(lanes * from_size) == 0 &&
                t % static_cast<std::uintptr_t>(lanes * to_size) == 0)
              return head;
          }
          return -1;
        };
        int widest = widest_vector / wider;
        while (widest > 1 && head_of(widest) < 0) widest /= 2;
        const Lanes lanes = lanes_of(from, to, from_size, to_size, 1000);
        ASSERT_EQ(lanes.lanes, widest) << from << " " << to << " " << from_size << " " << to_size;
        ASSERT_EQ(lanes.head, widest == 1 ? 0 : head_of(widest));
        for (const std::int64_t count : {0, 1, 5})
          ASSERT_EQ(lanes_of(from, to, from_size, to_size, count).head, std::min(lanes.head, count));
      }
    }
  }
  EXPECT_EQ(lanes_of(65, 64, 4, 4, 100).lanes, 1) << "not even an element is aligned";
}

TEST(Moves, TilesCoverEveryElementOnce) {
  for (const std::int64_t elements : {4, 16, 64}) {
    for (std::int64_t head = 0; head < 4; ++head) {
      for (std::int64_t count = head; count < 300; ++count) {
        const std::int64_t tiles = tiles_of(count, head, elements);
        ASSERT_EQ(tiles == 0, count == 0);
        std::int64_t next = 0;
        for (std::int64_t tile = 0; tile < tiles; ++tile) {
          const TileRange range = range_of_tile(tile, tiles, count, head, elements);
          ASSERT_EQ(range.begin, next);
          ASSERT_GE(range.end, range.begin);
          ASSERT_TRUE(tile == 0 || (range.begin - head) % elements == 0);
          ASSERT_LE(range.end - range.begin, elements + head);
          next = range.end;
        }
        ASSERT_EQ(next, count);
      }
    }
  }
}

TEST(Moves, EveryTileFindsItsMove) {
  std::mt19937 random(1);
  for (std::int64_t count = 1; count < 40; ++count) {
    std::vector<PackItem> items(static_cast<std::size_t>(count));
    std::int64_t tiles = 0;
    for (PackItem& item : items) {
      item.first_tile = tiles;
      tiles += 1 + static_cast<std::int64_t>(random() % 4);
    }
    std::int64_t expected = 0;
    for (std::int64_t tile = 0; tile < tiles; ++tile) {
      if (expected + 1 < count && items[static_cast<std::size_t>(expected) + 1].first_tile == tile) ++expected;
      ASSERT_EQ(item_of_tile(items.data(), count, tile), expected);
    }
  }
}

/// Moves of random lengths between random addresses; threads in any order give the same.
template <class To, class From>
void check_items(const Conversion& how, unsigned seed, std::int64_t longest, int byte_shift = 0) {
  std::mt19937_64 random(seed);
  struct Piece {
    std::size_t from, to, count;
  };
  std::vector<Piece> pieces;
  std::size_t from_end = 64, to_end = 64;
  const std::size_t count = random() % 20;
  for (std::size_t i = 0; i < count; ++i) {
    const auto length = static_cast<std::size_t>(random() % static_cast<std::uint64_t>(longest + 1));
    pieces.push_back({from_end + random() % 9 * sizeof(From), to_end + random() % 9 * sizeof(To), length});
    from_end = pieces.back().from + length * sizeof(From) + 8;
    to_end = pieces.back().to + length * sizeof(To) + 8;
    from_end += 8 - from_end % 8;
    to_end += 8 - to_end % 8;
  }
  std::vector<std::byte> from(from_end + 64), to(to_end + 64, std::byte{0xa5}), expected = to;
  for (std::byte& byte : from) byte = static_cast<std::byte>(random());
  const auto shift = static_cast<std::size_t>(byte_shift);
  std::vector<PackItem> items;
  for (const Piece& piece : pieces) {
    for (std::size_t i = 0; i < piece.count; ++i) {
      const From value = element_value<From>(seed, 0, piece.from, i);
      std::memcpy(from.data() + shift + piece.from + i * sizeof(From), &value, sizeof(From));
      To wanted{};
      if constexpr (std::is_same_v<To, From>) wanted = value;
      if (!how.is_copy()) wanted = converted<To, From>(value, how);
      std::memcpy(expected.data() + piece.to + i * sizeof(To), &wanted, sizeof(To));
    }
    items.push_back({from.data() + shift + piece.from, to.data() + piece.to, static_cast<std::int64_t>(piece.count)});
  }
  const std::int64_t tiles = lay_tiles(items, how);
  for (std::int64_t tile = 0; tile < tiles; ++tile) {
    for (int thread = threads_of_tile - 1; thread >= 0; --thread) {
      const auto length = static_cast<std::int64_t>(items.size());
      if (how.is_copy())
        pack_tile<unsigned char, unsigned char>(items.data(), length, tile, tiles, thread, threads_of_tile, Keep{});
      else
        pack_tile<To, From>(items.data(), length, tile, tiles, thread, threads_of_tile,
                            [&](From value) { return converted<To, From>(value, how); });
    }
  }
  ASSERT_EQ(to, expected) << to_string(how.from) << " to " << to_string(how.to) << " seed " << seed;
}

TEST(Moves, CopyEveryTypeLengthAndAlignment) {
  for (const DType dtype : all_types) {
    with_type(dtype, [&]<class T>() {
      for (unsigned seed = 1; seed <= (sanitized ? 10 : 60); ++seed) {
        check_items<T, T>({dtype, dtype}, seed, 100);
        check_items<T, T>({dtype, dtype}, seed, 20'000);
        check_items<T, T>({dtype, dtype}, seed, 100, 1);  // addresses that are no multiples of the element's size
      }
    });
  }
}

TEST(Moves, ConvertEveryPairOfTypes) {
  int pairs = 0;
  for (const DType from : all_types) {
    for (const DType to : all_types) {
      if (!convertible(from, to)) continue;
      ++pairs;
      for (const Conversion& how :
           {Conversion{from, to, 0.5}, Conversion{from, to, 1, 3}, Conversion{from, to, 2, 2, 0.25}}) {
        with_types(how, [&]<class To, class From>() {
          if constexpr (has_key<To> == has_key<From>) {
            EXPECT_EQ(DTypeOf<From>::value, from);
            EXPECT_EQ(DTypeOf<To>::value, to);
            for (unsigned seed = 1; seed <= (sanitized ? 2 : 10); ++seed) {
              check_items<To, From>(how, seed, 100);
              check_items<To, From>(how, seed, 5'000);
            }
          }
        });
      }
    }
  }
  EXPECT_EQ(pairs, 12 + 2 * 8 + 2 * 5)
      << "each arithmetic type to itself; eight to what they are accumulated in and back, five to their keys and back";
}

template <class Float>
void check_keys() {
  using Limits = std::numeric_limits<Float>;
  const std::vector<Float> ascending{
      -Limits::infinity(), Limits::lowest(),  -1, -Limits::denorm_min(), -Float{0}, 0, Limits::denorm_min(), 1,
      Limits::max(),       Limits::infinity()};
  for (const bool descending : {false, true}) {
    for (std::size_t i = 0; i < ascending.size(); ++i) {
      const auto key = key_of(ascending[i], descending);
      EXPECT_GT(key, 0u) << "what joined ranks give";
      EXPECT_LT(key, key_of(Limits::quiet_NaN(), descending)) << "NaN is kept";
      EXPECT_EQ(std::signbit(value_of_key<Float>(key, descending)), std::signbit(ascending[i]));
      EXPECT_EQ(value_of_key<Float>(key, descending), ascending[i]);
      EXPECT_TRUE(i == 0 || (key > key_of(ascending[i - 1], descending)) != descending);
    }
    EXPECT_EQ(key_of(-Limits::quiet_NaN(), descending), key_of(Limits::quiet_NaN(), descending));
    EXPECT_TRUE(std::isnan(value_of_key<Float>(key_of(Limits::quiet_NaN(), descending), descending)));
  }
}

TEST(Keys, HaveTheOrderOfTheirValues) {
  check_keys<float>();
  check_keys<double>();
}

TEST(Keys, AreMadeByConversions) {
  const auto around = []<class T>(T value, double scale, bool descending) {
    const Conversion there{DTypeOf<T>::value, key_type(DTypeOf<T>::value), scale, 1, 1, descending};
    const Conversion back{there.to, there.from, 1, 1, 1 / scale, descending};
    return converted<T, Key<T>>(converted<Key<T>, T>(value, there), back);
  };
  for (const bool descending : {false, true}) {
    EXPECT_EQ(around(0.1F, 4, descending), 0.1F);
    EXPECT_EQ(around(-0.1, 0.5, descending), -0.1);
    EXPECT_EQ(to_float(around(to_float16(-1.5F), 2, descending)), -1.5F);
    EXPECT_EQ(to_float(around(to_bfloat16(3), 1, descending)), 3);
    EXPECT_TRUE(std::isnan(to_float(around(to_float16(std::nanf("")), 2, descending))));
    for (const std::uint8_t byte : {0, 1, 2, 255}) {
      const Conversion there{DType::boolean, DType::u8, 1, 1, 1, descending};
      const Conversion back{DType::u8, DType::boolean, 1, 1, 1, descending};
      const auto key = converted<std::uint8_t, Truth>(Truth{byte}, there);
      EXPECT_EQ(key, (byte != 0) != descending ? 1 : 0);
      EXPECT_EQ((converted<Truth, std::uint8_t>(key, back).byte), byte != 0 ? 1 : 0);
    }
  }
}

TEST(Moves, InPlaceScalesEveryElementOnce) {
  std::vector<float> values(100'001);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  const Conversion how{DType::f32, DType::f32, 0.5};
  std::vector<PackItem> items{
      {reinterpret_cast<std::byte*>(values.data() + 1), reinterpret_cast<std::byte*>(values.data() + 1), 99'999}};
  const std::int64_t tiles = lay_tiles(items, how);
  EXPECT_GE(tiles, 99'999 * 4 / tile_bytes) << "the grid grows with the bytes";
  for (std::int64_t tile = 0; tile < tiles; ++tile) {
    for (int thread = 0; thread < threads_of_tile; ++thread) {
      pack_tile<float, float>(items.data(), 1, tile, tiles, thread, threads_of_tile,
                              [&](float value) { return converted<float, float>(value, how); });
    }
  }
  for (std::size_t i = 0; i < values.size(); ++i)
    ASSERT_EQ(values[i], static_cast<float>(i) * (i == 0 || i == 100'000 ? 1.0f : 0.5f)) << i;
}

TEST(Moves, ConversionsRoundAndTruncateAsTheHostDoes) {
  EXPECT_EQ((converted<std::int32_t, std::int64_t>(-7, {DType::i64, DType::i32, 1, 2})), -3) << "truncated toward zero";
  EXPECT_EQ((converted<std::int64_t, std::int8_t>(-7, {DType::i8, DType::i64, 0.5})), -3);
  EXPECT_EQ((converted<std::uint8_t, std::uint64_t>(300, {DType::u64, DType::u8})), 44) << "the low bits";
  EXPECT_EQ(to_float(converted<Float16, float>(1.0f / 3, {DType::f32, DType::f16})), to_float(to_float16(1.0f / 3)));
  EXPECT_EQ((converted<double, double>(1, {DType::f64, DType::f64, 0.1, 3, 0.3})), 1 * 0.1 / 3 * 0.3);
}

/// The same numbers as the host's reduction, ranks that do not count left out.
TEST(Combination, IsWhatTheHostReducesTo) {
  constexpr std::size_t count = 50;
  for (const DType dtype : all_types) {
    with_type(dtype, [&]<class T>() {
      for (const ReduceOp op : all_reduce_ops) {
        if (!reducible(op, dtype)) continue;
        for (const double scale : {1.0, -2.5}) {
          if (scale != 1 && !scalable(op, dtype)) continue;
          for (const int ranks : {1, 2, 3, 7, 70}) {
            for (const int left_out : {-1, 0, ranks / 2, ranks - 1}) {
              if (left_out >= 0 && ranks == 1) continue;
              std::vector<std::byte> memory(static_cast<std::size_t>(ranks) * (count * sizeof(T) + 24));
              std::vector<const void*> sources;
              for (int rank = 0; rank < ranks; ++rank) {
                auto* const begin = memory.data() + static_cast<std::size_t>(rank) * (count * sizeof(T) + 24);
                for (std::size_t i = 0; i < count; ++i) {
                  const T value = element_value<T>(1, static_cast<std::uint64_t>(rank), 0, i);
                  std::memcpy(begin + i * sizeof(T), &value, sizeof(T));
                }
                if (rank != left_out) sources.push_back(begin);
              }
              std::array<T, count> found{}, wanted{};
              Combination what{memory.data(),
                               count * sizeof(T) + 24,
                               reinterpret_cast<std::byte*>(found.data()),
                               count,
                               dtype,
                               op,
                               scale,
                               3 * scale};
              if (!scalable(op, dtype)) what.postscale = 1;
              what.ranks = ranks;
              what.sources = static_cast<int>(sources.size());
              what.divide_by = what.sources;
              if (left_out >= 0) what.absent[left_out / 64] = std::uint64_t{1} << (left_out % 64);
              for (std::int64_t i = 0; i < static_cast<std::int64_t>(count); ++i) combine_element<T>(what, i);
              void* const destination = wanted.data();
              reduce({dtype, op, what.prescale, what.postscale, what.divide_by}, sources, {&destination, 1}, count);
              ASSERT_EQ(0, std::memcmp(found.data(), wanted.data(), sizeof(found)))
                  << to_string(op) << " " << to_string(dtype) << " scale " << scale << " ranks " << ranks << " without "
                  << left_out;
            }
          }
        }
      }
    });
  }
}

TEST(Packer, ThousandsOfSmallTensorsTakeOneLaunch) {
  auto& gpu = testing::fake_gpu(0);
  const GpuStream stream(gpu);
  constexpr std::size_t tensors = 20'000;
  const GpuBuffer from(gpu, tensors * 400), to(gpu, tensors * 400);
  std::vector<std::int32_t> values(tensors * 100), found(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<std::int32_t>(i);
  gpu.upload(from.data(), values.data(), values.size() * 4, stream.get());
  Packer packer(gpu, stream.get());
  const Conversion copy{DType::i32, DType::i32};
  for (int turn = 0; turn < 5; ++turn) {  // tables that the stream has not read yet must not be written again
    std::vector<PackItem> items;
    for (std::size_t t = 0; t < tensors; ++t) {
      const std::size_t other = (t + static_cast<std::size_t>(turn)) % tensors;
      items.push_back({from.data() + t * 400, to.data() + other * 400, 100});
    }
    packer.run(items, copy);
  }
  const auto launches = [&] { return std::ranges::count(gpu.log(), "pack " + std::to_string(tensors)); };
  EXPECT_EQ(launches(), 5);
  packer.run({{from.data(), from.data() + 40, 0}}, copy);
  EXPECT_EQ(launches(), 5) << "nothing to do";
  gpu.download(found.data(), to.data(), values.size() * 4, stream.get());
  for (std::size_t t = 0; t < tensors; ++t) ASSERT_EQ(found[(t + 4) % tensors * 100 + 7], values[t * 100 + 7]);
}

/// A table that was used before serves again only if it is long enough; the GPU complains about what is written beside
/// it.
TEST(Packer, TablesAreAsLongAsTheirMoves) {
  auto& gpu = testing::fake_gpu(0);
  const GpuStream stream(gpu);
  constexpr std::size_t longest = 4097;
  const GpuBuffer from(gpu, longest * 4), to(gpu, longest * 4);
  std::vector<std::int32_t> values(longest), found(longest);
  for (std::size_t i = 0; i < longest; ++i) values[i] = static_cast<std::int32_t>(i);
  gpu.upload(from.data(), values.data(), longest * 4, stream.get());
  Packer packer(gpu, stream.get());
  for (const std::size_t count : {longest - 1, longest, std::size_t{100}}) {
    std::vector<PackItem> items;
    for (std::size_t i = 0; i < count; ++i) items.push_back({from.data() + i * 4, to.data() + i * 4, 1});
    packer.run(items, {DType::i32, DType::i32});
    gpu.synchronize(stream.get());  // so that the table can be used again
  }
  gpu.download(found.data(), to.data(), longest * 4, stream.get());
  EXPECT_EQ(found, values);
}

TEST(Packer, FewTensorsTravelWithTheLaunch) {
  auto& gpu = testing::fake_gpu(1);
  const GpuStream stream(gpu);
  const GpuBuffer from(gpu, 1 << 16), to(gpu, 1 << 16);
  gpu.clear_log();
  Packer packer(gpu, stream.get());
  std::vector<PackItem> items;
  for (std::size_t t = 0; t < most_items_passed; ++t) items.push_back({from.data() + t * 64, to.data() + t * 64, 16});
  packer.run(items, {DType::f32, DType::f32});
  packer.run({}, {DType::f32, DType::f32});
  gpu.synchronize(stream.get());
  EXPECT_EQ(gpu.log(), (std::vector<std::string>{"pack 96"}));
}

}  // namespace
}  // namespace kolo
