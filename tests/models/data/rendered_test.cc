#include "models/data/dataset.h"

#include <gtest/gtest.h>

#include <kolo/detail/hash.h>

#include "models/data/glyphs.h"
#include "models/data/sampler.h"
#include "models/optim/optimizer.h"
#include "tests/models/models_testing.h"

namespace kolo::models {
namespace {

std::uint64_t hash_of(const Dataset& data) {
  detail::Hash hash;
  hash.add(std::as_bytes(std::span(data.inputs)));
  for (const std::int32_t label : data.labels) hash.add(static_cast<std::uint64_t>(label));
  return hash.value();
}

TEST(Rendered, SameBytesEverywhere) {
  const DataSplit split = render_digits({.train = 300, .held_out = 100});
  EXPECT_EQ(hash_of(split.train), 13535911390300163908u);
  EXPECT_EQ(hash_of(split.held_out), 13597790117368243709u);
}

TEST(Rendered, SizesAndLabels) {
  const DataSplit split = render_digits({.train = 1000, .held_out = 50});
  EXPECT_EQ(split.train.count(), 1000);
  EXPECT_EQ(split.held_out.count(), 50);
  EXPECT_EQ(split.train.input_size(), 784);
  EXPECT_EQ(split.train.inputs.size(), 784000u);
  EXPECT_EQ(split.description, "digits drawn by this program: 1000 to train on, 50 held out");
  std::vector<int> counts(10);
  for (const std::int32_t label : split.train.labels) ++counts.at(static_cast<std::size_t>(label));
  for (const int count : counts) EXPECT_GT(count, 50);
}

TEST(Rendered, SeedsAndSetsDiffer) {
  const DataSplit one = render_digits({.train = 50, .held_out = 50}),
                  two = render_digits({.train = 50, .held_out = 50, .seed = 2});
  EXPECT_NE(hash_of(one.train), hash_of(two.train));
  EXPECT_NE(hash_of(one.train), hash_of(one.held_out));
}

TEST(Rendered, EveryDigitHasSeveralWays) {
  for (int digit = 0; digit < 10; ++digit) EXPECT_GE(glyphs_of(digit).size(), 2u) << digit;
}

TEST(Rendered, SmoothStrokesGoThroughTheirPoints) {
  for (int digit = 0; digit < 10; ++digit) {
    for (const Glyph& glyph : glyphs_of(digit)) {
      for (const Stroke& stroke : glyph) {
        const std::vector<Point> points = outline(stroke, 4);
        const std::size_t pieces = stroke.smooth ? 4 : 1;
        ASSERT_EQ(points.size(), (stroke.points.size() - 1) * pieces + 1);
        for (std::size_t i = 0; i < stroke.points.size(); ++i) {
          EXPECT_NEAR(points[i * pieces].x, stroke.points[i].x, 1e-6);
          EXPECT_NEAR(points[i * pieces].y, stroke.points[i].y, 1e-6);
        }
      }
    }
  }
}

TEST(Rendered, CanBeLearntButNotAtOnce) {
  const DataSplit split = render_digits();
  testing::BoundMlp mlp({784, 128, 10});
  Sgd sgd(mlp.model.parameters(), 0.9);
  Sampler sampler({.examples = split.train.count(), .batch = 64});
  testing::ImageBatches loader(split.train);
  const auto accuracy = [&] {
    const std::int64_t count = split.held_out.count();
    return static_cast<double>(
               evaluate(mlp.model, Images(split.held_out), {.range = {0, count}, .batch = 256}).correct) /
           static_cast<double>(count);
  };
  EXPECT_LT(accuracy(), 0.3);
  const std::int64_t steps = sampler.steps_per_epoch();
  for (std::int64_t step = 0; step < 6 * steps; ++step) {
    if (step == steps) {
      EXPECT_LT(accuracy(), 0.95);
    }
    const StepShare share = sampler.at(step);
    mlp.model.forward_backward(loader.gather(share.examples), testing::ignore_ready);
    sgd.step(0.1, 1.0 / static_cast<double>(share.global_examples));
  }
  EXPECT_GT(accuracy(), 0.95);
}

}  // namespace
}  // namespace kolo::models
