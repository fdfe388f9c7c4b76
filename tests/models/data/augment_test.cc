
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "models/data/images.h"
#include "tests/models/models_testing.h"

namespace kolo::models {
namespace {

/// A set of `count` images with a 6x6 square in the middle of each of two planes of 20x24 pixels.
Dataset squares(std::int64_t count) {
  Dataset data{.channels = 2, .rows = 20, .columns = 24, .classes = 2, .inputs = {}, .labels = {}};
  data.inputs.resize(static_cast<std::size_t>(count * data.input_size()));
  for (std::int64_t plane = 0; plane < 2 * count; ++plane) {
    for (std::int64_t row = 7; row < 13; ++row) {
      std::fill_n(data.inputs.begin() + plane * 480 + row * 24 + 9, 6, std::uint8_t{255});
    }
  }
  data.labels.assign(static_cast<std::size_t>(count), 1);
  return data;
}

AlignedFloats gathered(const Examples& images, std::vector<std::int64_t> which, std::int64_t epoch) {
  BatchStorage batch;
  images.gather(which, epoch, batch);
  return batch.inputs;
}

TEST(Augment, DependsOnSeedEpochAndExampleOnly) {
  const Dataset data = squares(4);
  const Images one(data, 1), two(data, 2), plain(data);
  const auto first = gathered(one, {0, 1}, 0), other_way = gathered(one, {1, 0}, 0);
  EXPECT_TRUE(std::equal(first.begin(), first.begin() + 960, other_way.begin() + 960));
  EXPECT_NE(gathered(one, {0}, 0), gathered(one, {1}, 0));
  EXPECT_NE(gathered(one, {0}, 0), gathered(one, {0}, 1));
  EXPECT_NE(gathered(one, {0}, 0), gathered(two, {0}, 0));
  EXPECT_EQ(gathered(plain, {0}, 0), gathered(plain, {1}, 3));
}

TEST(Augment, MovesTheInkALittleAndKeepsIt) {
  const Dataset data = squares(200);
  const Images images(data, 3);
  double rows = 0, columns = 0;
  for (std::int64_t i = 0; i < 200; ++i) {
    const auto picture = gathered(images, {i}, 0);
    double ink = 0, row = 0, column = 0;
    for (std::int64_t p = 0; p < 480; ++p) {
      const double value = picture[static_cast<std::size_t>(p)];
      EXPECT_EQ(picture[static_cast<std::size_t>(p)], picture[static_cast<std::size_t>(480 + p)])
          << "planes move together";
      ASSERT_GE(value, 0);
      ASSERT_LE(value, 1);
      ink += value;
      row += value * static_cast<double>(p / 24);
      column += value * static_cast<double>(p % 24);
    }
    EXPECT_NEAR(ink, 36, 10);
    EXPECT_NEAR(row / ink, 9.5, 2.8);
    EXPECT_NEAR(column / ink, 11.5, 2.8);
    rows += row / ink / 200;
    columns += column / ink / 200;
  }
  EXPECT_NEAR(rows, 9.5, 0.4);
  EXPECT_NEAR(columns, 11.5, 0.4);
}

}  // namespace
}  // namespace kolo::models
