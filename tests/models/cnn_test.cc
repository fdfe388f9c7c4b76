#include "models/cnn.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <barrier>
#include <cmath>
#include <thread>
#include <vector>

#include "models/compute/random.h"
#include "models/registry.h"
#include "tests/models/finite_differences.h"
#include "tests/models/models_testing.h"

namespace kolo::models {
namespace {

using testing::error_of;
using testing::ignore_ready;
using BoundCnn = testing::Bound<Cnn>;

/// Colour images with an odd row that pooling leaves out, and filters that fill no vector.
CnnSettings odd_sizes(bool batch_norm = false) {
  return {.channels = 3, .height = 9, .width = 8, .filters = 6, .dense = 7, .classes = 4, .batch_norm = batch_norm};
}

testing::RandomExamples random_images(std::int64_t count, const CnnSettings& settings) {
  return {count, settings.channels * settings.height * settings.width, static_cast<std::uint64_t>(settings.classes)};
}

/// Sums over ranks that are threads of one process.
class Ranks {
 public:
  explicit Ranks(int count) : barrier_(count), tensors_(static_cast<std::size_t>(count)) {}
  ReduceFn reduce_of(int rank) {
    return [this, rank](Tensor tensor) {
      tensors_[static_cast<std::size_t>(rank)] = tensor;
      barrier_.arrive_and_wait();
      const auto count = static_cast<std::size_t>(tensor.elements());
      std::vector<double> sum(count);
      for (const Tensor& other : tensors_) {
        for (std::size_t i = 0; i < count; ++i) sum[i] += static_cast<const double*>(other.data)[i];
      }
      barrier_.arrive_and_wait();
      std::ranges::copy(sum, static_cast<double*>(tensor.data));
    };
  }

 private:
  std::barrier<> barrier_;
  std::vector<Tensor> tensors_;
};

TEST(Cnn, NamesAndShapesAreThoseOfPyTorch) {
  const Cnn model(CnnSettings{.batch_norm = true});
  const std::vector<std::pair<std::string, Shape>> expected{
      {"conv1.weight", {32, 1, 3, 3}}, {"bn1.weight", {32}},        {"bn1.bias", {32}},
      {"bn1.running_mean", {32}},      {"bn1.running_var", {32}},   {"dense1.weight", {64, 5408}},
      {"dense1.bias", {64}},           {"dense2.weight", {10, 64}}, {"dense2.bias", {10}}};
  ASSERT_EQ(model.parameters().size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(model.parameters()[i].name, expected[i].first);
    EXPECT_EQ(model.parameters()[i].shape, expected[i].second);
  }
  EXPECT_EQ(Cnn(CnnSettings{}).parameters().size(), 6u);
}

TEST(Cnn, GradientsAreFiniteDifferences) {
  const auto images = random_images(8, odd_sizes());
  for (const bool batch_norm : {false, true}) {
    BoundCnn cnn(odd_sizes(batch_norm));
    const auto loss = [&](const Batch& batch) {
      if (!batch_norm) return cnn.model.evaluate(batch).loss_sum;
      return cnn.model.forward_backward(batch, ignore_ready).loss_sum;  // the batch's own statistics
    };
    EXPECT_LT(testing::worst_difference(cnn.model, images.batch(0, 8), 1e-3f, loss), 2e-2) << batch_norm;
  }
}

TEST(Cnn, GradientsAreAnnouncedLastLayerFirstAndFinal) {
  const auto images = random_images(5, odd_sizes());
  for (const bool batch_norm : {false, true}) {
    BoundCnn cnn(odd_sizes(batch_norm));
    for (const std::int64_t count : {5, 0}) {
      std::ranges::fill(cnn.gradients, NAN);
      std::vector<std::size_t> order;
      std::vector<std::vector<float>> seen(cnn.model.parameters().size());
      cnn.model.forward_backward(images.batch(0, count), [&](std::size_t index) {
        order.push_back(index);
        const auto gradient = testing::floats_of(cnn.model.parameters()[index].gradient);
        seen[index].assign(gradient.begin(), gradient.end());
      });
      ASSERT_EQ(order.size(), batch_norm ? 7u : 6u);  // not the buffers
      EXPECT_EQ(order, cnn.model.backward_order());
      EXPECT_TRUE(std::ranges::is_sorted(order, std::ranges::greater()));
      for (std::size_t i = 0; i < seen.size(); ++i) {
        EXPECT_TRUE(std::ranges::equal(seen[i], testing::floats_of(cnn.model.parameters()[i].gradient))) << i;
      }
    }
  }
}

TEST(Cnn, UnevenPartsAddUpToOneBatchOfAScaledLoss) {
  const auto images = random_images(9, odd_sizes());
  BoundCnn cnn(odd_sizes());
  const double whole = cnn.model.forward_backward(images.batch(0, 9), ignore_ready).loss_sum;
  AlignedFloats expected = cnn.gradients;
  for (float& gradient : expected) gradient *= 2;
  double loss = cnn.model.forward_backward(images.batch(0, 4), ignore_ready, {.scale = 2}).loss_sum;
  cnn.model.forward_backward(images.batch(4, 0), ignore_ready, {.add = true, .scale = 2});
  loss += cnn.model.forward_backward(images.batch(4, 5), ignore_ready, {.add = true, .scale = 2}).loss_sum;
  EXPECT_NEAR(loss, whole, 1e-5);
  EXPECT_LT(testing::relative_difference(cnn.gradients, expected), 1e-6);
}

TEST(Cnn, NormOverRanksEqualsOneBigBatch) {
  const auto images = random_images(10, odd_sizes());
  BoundCnn alone(odd_sizes(true));
  const double whole = alone.model.forward_backward(images.batch(0, 10), ignore_ready).loss_sum;

  const std::vector<std::pair<std::int64_t, std::int64_t>> shares{{0, 6}, {6, 0}, {6, 4}};
  Ranks ranks(3);
  std::vector<std::unique_ptr<BoundCnn>> each;
  for (int rank = 0; rank < 3; ++rank) {
    each.push_back(std::make_unique<BoundCnn>(odd_sizes(true), Precision::f32, ranks.reduce_of(rank)));
  }
  std::vector<double> losses(3);
  {
    std::vector<std::jthread> threads;
    for (std::size_t rank = 0; rank < 3; ++rank) {
      threads.emplace_back([&, rank] {
        const auto [first, count] = shares[rank];
        losses[rank] = each[rank]->model.forward_backward(images.batch(first, count), ignore_ready).loss_sum;
      });
    }
  }
  EXPECT_NEAR(losses[0] + losses[1] + losses[2], whole, 1e-5);
  AlignedFloats sum(alone.gradients.size());
  for (const auto& rank : each) {
    EXPECT_LT(testing::relative_difference(rank->values, alone.values), 1e-7);  // the running statistics among them
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += rank->gradients[i];
  }
  EXPECT_LT(testing::relative_difference(sum, alone.gradients), 2e-6);
}

TEST(Cnn, RunningStatisticsAreWhatEvaluationUses) {
  const auto images = random_images(6, odd_sizes());
  BoundCnn cnn(odd_sizes(true));
  const double before = cnn.model.evaluate(images.batch(0, 6)).loss_sum;
  double trained = 0;
  for (int pass = 0; pass < 200; ++pass)
    trained = cnn.model.forward_backward(images.batch(0, 6), ignore_ready).loss_sum;
  EXPECT_GT(std::abs(before - trained), 1e-3);
  const double evaluated = cnn.model.evaluate(images.batch(0, 6)).loss_sum;
  EXPECT_NEAR(evaluated, trained, 5e-3 * trained);  // a sample's variance is a little larger
  const double one = cnn.model.evaluate(images.batch(2, 1)).loss_sum,
               other = cnn.model.evaluate(images.batch(3, 1)).loss_sum;
  EXPECT_NEAR(one + other, cnn.model.evaluate(images.batch(2, 2)).loss_sum, 1e-5);
}

TEST(Cnn, SixteenBitsComeCloseToF32) {
  const auto images = random_images(16, CnnSettings{});
  BoundCnn exact(CnnSettings{});
  exact.model.forward_backward(images.batch(0, 16), ignore_ready);
  for (const auto& [precision, error] : {std::pair{Precision::bf16, 5e-2}, {Precision::f16, 1e-2}}) {
    BoundCnn rounded(CnnSettings{}, precision);
    rounded.model.forward_backward(images.batch(0, 16), ignore_ready);
    const double difference = testing::relative_difference(rounded.gradients, exact.gradients);
    EXPECT_LT(difference, error) << to_string(precision);
    EXPECT_GT(difference, error / 200) << to_string(precision);
  }
}

TEST(Cnn, BadSizesAndBatchesAreErrors) {
  EXPECT_EQ(error_of([] { Cnn(CnnSettings{.height = 3}); }),
            "a CNN cannot have 3 rows (4 to 65536); say --channels 1 --filters 32 --dense 64");
  EXPECT_EQ(
      error_of([] { make_model("cnn", {.inputs = 3072, .classes = 10}); }),
      "a cnn of 1 x 28 x 28 inputs and 10 classes does not fit the data (3072 inputs and 10 classes); give it the "
      "data's --channels");
  EXPECT_EQ(error_of([] { make_model("cnn", {.recompute = true}); }),
            "recomputation is for llama (a cnn computes nothing again); leave --recompute out");
  BoundCnn cnn(odd_sizes());
  EXPECT_EQ(error_of([&] { cnn.model.evaluate({.examples = 2}); }),
            "a batch of 2 examples has 0 inputs and 0 targets (the model takes 216 inputs each)");
}

}  // namespace
}  // namespace kolo::models
