#include "models/layers/layers.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <vector>

#include "models/compute/product.h"
#include "tests/models/models_testing.h"

namespace kolo::models {
namespace {

using testing::error_of;

const MatmulItem* work(const std::vector<float>& values) {
  return reinterpret_cast<const MatmulItem*>(values.data());
}

TEST(Layers, DenseForwardByHand) {
  const std::vector<float> x{1, 2, 3, -1}, w{1, 0, 0, 1, -1, -1}, bias{0.5f, 0, 1};
  std::vector<float> y(6);
  product_forward(Precision::f32, 2, 2, 3, work(x), work(w), y.data());
  std::vector<float> relu = y;
  add_bias(2, 3, bias.data(), Activation::none, y.data());
  EXPECT_EQ(y, (std::vector<float>{1.5f, 2, -2, 3.5f, -1, -1}));
  add_bias(2, 3, bias.data(), Activation::relu, relu.data());
  EXPECT_EQ(relu, (std::vector<float>{1.5f, 2, 0, 3.5f, 0, 0}));
}

TEST(Layers, DenseBackwardByHand) {
  const std::vector<float> x{1, 2, 3, -1}, w{1, 0, 0, 1, -1, -1}, dy{1, 0, 2, 0, 1, 1};
  std::vector<float> dw(6), dx(4), dbias(3);
  product_weight(Precision::f32, 2, 2, 3, work(dy), work(x), false, dw.data());
  EXPECT_EQ(dw, (std::vector<float>{1, 2, 3, -1, 5, 3}));
  product_weight(Precision::f32, 2, 2, 3, work(dy), work(x), true, dw.data());
  EXPECT_EQ(dw, (std::vector<float>{2, 4, 6, -2, 10, 6}));
  product_backward(Precision::f32, 2, 2, 3, work(dy), work(w), dx.data());
  EXPECT_EQ(dx, (std::vector<float>{-1, -2, -1, 0}));
  bias_gradient(2, 3, dy.data(), dbias.data(), Gradient::overwrite);
  EXPECT_EQ(dbias, (std::vector<float>{1, 1, 3}));
}

TEST(Layers, ReluBackwardMasksAndSums) {
  const std::vector<float> y{1, 0, 2, 3};
  std::vector<float> dy{5, 6, 7, 8}, dbias(2, 99);
  relu_backward(2, 2, y.data(), dy.data(), dbias.data(), Gradient::overwrite);
  EXPECT_EQ(dy, (std::vector<float>{5, 0, 7, 8}));
  EXPECT_EQ(dbias, (std::vector<float>{12, 8}));
}

TEST(Layers, CrossEntropyByHand) {
  const std::vector<float> logits{0, 0, 0, 0, 1, 2, 3, 4};
  const std::vector<std::int32_t> targets{2, 3};
  std::vector<float> gradient(8);
  const BatchResult result = softmax_cross_entropy(2, 4, logits.data(), targets, gradient.data());
  const double sum = std::exp(-3.0) + std::exp(-2.0) + std::exp(-1.0) + 1;
  EXPECT_NEAR(result.loss_sum, std::log(4) + std::log(sum), 1e-6);
  EXPECT_EQ(result.correct, 1);  // of equal logits the first counts, which is not the target
  EXPECT_FLOAT_EQ(gradient[0], 0.25f);
  EXPECT_FLOAT_EQ(gradient[2], -0.75f);
  EXPECT_FLOAT_EQ(gradient[4], static_cast<float>(std::exp(-3.0) / sum));
  EXPECT_FLOAT_EQ(gradient[7], static_cast<float>(1 / sum - 1));
}

TEST(SoftmaxCrossEntropy, LeavesOutWhatHasNoTargetAndScalesTheGradient) {
  const std::vector<float> logits{0, 1, 2, 5, 6, 7, 0, 1, 2};
  const std::vector<std::int32_t> targets{2, -1, 2};
  std::vector<float> gradient(9, NAN), alone(3);
  const BatchResult result = softmax_cross_entropy(3, 3, logits.data(), targets, gradient.data(), 4);
  const BatchResult one = softmax_cross_entropy(1, 3, logits.data(), std::span(targets).first(1), alone.data());
  EXPECT_EQ(result.targets, 2);
  EXPECT_EQ(result.correct, 2);
  EXPECT_DOUBLE_EQ(result.loss_sum, 2 * one.loss_sum);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(gradient[i], 4 * alone[i]);
    EXPECT_EQ(gradient[i + 3], 0);
    EXPECT_EQ(gradient[i + 6], 4 * alone[i]);
  }
}

TEST(Layers, CrossEntropyOfExtremeLogitsIsFiniteAndHasNoDenormals) {
  const std::vector<float> logits{1e30f, -1e30f, 0, 95, 0, -5};
  const std::vector<std::int32_t> targets{0, 0}, wrong{1, 1};
  std::vector<float> gradient(6, 1);
  const BatchResult result = softmax_cross_entropy(2, 3, logits.data(), targets, gradient.data());
  EXPECT_DOUBLE_EQ(result.loss_sum, 0);
  EXPECT_EQ(result.correct, 2);
  for (const float g : gradient) EXPECT_EQ(g, 0);
  const BatchResult worst = softmax_cross_entropy(2, 3, logits.data(), wrong, nullptr);
  EXPECT_FLOAT_EQ(static_cast<float>(worst.loss_sum), 2e30f);
}

TEST(Layers, TargetOutOfRangeIsAnError) {
  const std::vector<float> logits{0, 0, 0};
  for (const std::int32_t target : {-2, 3}) {
    const std::array targets{target};
    EXPECT_EQ(
        error_of([&] { softmax_cross_entropy(1, 3, logits.data(), targets, nullptr); }),
        fmt::format("target {} is out of range (the model has 3 classes); check the labels and the sizes", target));
  }
}

}  // namespace
}  // namespace kolo::models
