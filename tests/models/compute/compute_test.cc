#include "models/compute/compute.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <vector>

#include "models/compute/buffer.h"
#include "models/compute/kept_few.h"
#include "models/compute/random.h"
#include "tests/models/models_testing.h"

// Whole-tensor operations by hand, and against plain loops.

namespace kolo::models {
namespace {

using Numbers = std::vector<float>;

Tensor tensor(const Numbers& numbers, const Shape& shape) {
  return view(const_cast<float*>(numbers.data()), shape);
}

class ComputeTest : public ::testing::Test {
 protected:
  const std::unique_ptr<Compute> compute = make_compute();
};

TEST_F(ComputeTest, ProductsOfEveryKind) {
  const Numbers x{1, 2, 3, -1}, w{1, 0, 0, 1, -1, -1}, bias{0.5f, 0, 1}, dy{1, 0, 2, 0, 1, 1};
  Numbers y(6), dw(6), dx(4);
  const Tensor a = tensor(x, {2, 2}), b = tensor(w, {3, 2}), c = tensor(y, {2, 3}), d = tensor(dy, {2, 3});
  compute->product({.transpose_b = true}, a, b, c);
  EXPECT_EQ(y, (Numbers{1, 2, -3, 3, -1, -2}));
  compute->product({.transpose_b = true, .activation = Activation::relu}, a, b, c);
  EXPECT_EQ(y, (Numbers{1, 2, 0, 3, 0, 0}));
  compute->product({.transpose_b = true, .bias = tensor(bias, {3})}, a, b, c);
  EXPECT_EQ(y, (Numbers{1.5f, 2, -2, 3.5f, -1, -1}));
  compute->product({.transpose_b = true, .bias = tensor(bias, {3}), .activation = Activation::relu}, a, b, c);
  EXPECT_EQ(y, (Numbers{1.5f, 2, 0, 3.5f, 0, 0}));
  compute->product({.transpose_a = true}, d, a, tensor(dw, {3, 2}));
  EXPECT_EQ(dw, (Numbers{1, 2, 3, -1, 5, 3}));
  compute->product({.transpose_a = true, .add = true}, d, a, tensor(dw, {3, 2}));
  EXPECT_EQ(dw, (Numbers{2, 4, 6, -2, 10, 6}));
  compute->product({}, d, b, tensor(dx, {2, 2}));
  EXPECT_EQ(dx, (Numbers{-1, -2, -1, 0}));
}

TEST_F(ComputeTest, BiasBackwardMasksAndSums) {
  const Numbers y{1, 0, 2, 3};
  Numbers dy{5, 6, 7, 8}, dbias(2, 99);
  compute->bias_backward({}, tensor(dy, {2, 2}), false, tensor(dbias, {2}));
  EXPECT_EQ(dbias, (Numbers{12, 14}));
  compute->bias_backward(tensor(y, {2, 2}), tensor(dy, {2, 2}), true, tensor(dbias, {2}));
  EXPECT_EQ(dy, (Numbers{5, 0, 7, 8}));
  EXPECT_EQ(dbias, (Numbers{24, 22}));
  dy = {5, 6, 7, 8};
  compute->bias_backward(tensor(y, {2, 2}), tensor(dy, {2, 2}), false, {});
  EXPECT_EQ(dy, (Numbers{5, 0, 7, 8}));
}

struct Losses {
  std::array<double, 3> sums{};
  Numbers gradient;
};

Losses losses_of(Compute& compute, const Numbers& logits, std::vector<std::int32_t> targets, float scale = 1) {
  Losses losses{.gradient = Numbers(logits.size(), NAN)};
  const auto rows = static_cast<std::int64_t>(targets.size());
  const Shape shape{rows, static_cast<std::int64_t>(logits.size()) / rows};
  compute.cross_entropy(tensor(logits, shape), view(targets), scale, tensor(losses.gradient, shape),
                        view(std::span(losses.sums)));
  return losses;
}

TEST_F(ComputeTest, CrossEntropyByHand) {
  const auto [sums, gradient] = losses_of(*compute, {0, 0, 0, 0, 1, 2, 3, 4}, {2, 3});
  const double sum = std::exp(-3.0) + std::exp(-2.0) + std::exp(-1.0) + 1;
  EXPECT_NEAR(sums[0], std::log(4) + std::log(sum), 1e-6);
  EXPECT_EQ(sums[1], 1);  // of equal logits the first counts, which is not the target
  EXPECT_EQ(sums[2], 2);
  EXPECT_FLOAT_EQ(gradient[0], 0.25f);
  EXPECT_FLOAT_EQ(gradient[2], -0.75f);
  EXPECT_FLOAT_EQ(gradient[4], static_cast<float>(std::exp(-3.0) / sum));
  EXPECT_FLOAT_EQ(gradient[7], static_cast<float>(1 / sum - 1));
}

TEST_F(ComputeTest, CrossEntropyLeavesOutWhatHasNoTargetAndScalesTheGradient) {
  const auto [sums, gradient] = losses_of(*compute, {0, 1, 2, 5, 6, 7, 0, 1, 2}, {2, -1, 2}, 4);
  const Losses one = losses_of(*compute, {0, 1, 2}, {2});
  EXPECT_DOUBLE_EQ(sums[0], 2 * one.sums[0]);
  EXPECT_EQ(sums[1], 2);
  EXPECT_EQ(sums[2], 2);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(gradient[i], 4 * one.gradient[i]);
    EXPECT_EQ(gradient[i + 3], 0);
    EXPECT_EQ(gradient[i + 6], 4 * one.gradient[i]);
  }
}

TEST_F(ComputeTest, CrossEntropyOfExtremeLogitsIsFiniteAndHasNoDenormals) {
  const Numbers logits{1e30f, -1e30f, 0, 95, 0, -5};
  const auto [sums, gradient] = losses_of(*compute, logits, {0, 0});
  EXPECT_DOUBLE_EQ(sums[0], 0);
  EXPECT_EQ(sums[1], 2);
  for (const float g : gradient) EXPECT_EQ(g, 0);
  EXPECT_FLOAT_EQ(static_cast<float>(losses_of(*compute, logits, {1, 1}).sums[0]), 2e30f);
}

/// Images of 2 x 3 channels in blocks of 2.
struct Planes {
  Planes() {
    Random random(3);
    for (float& value : blocks) value = random.symmetric(1);
  }
  float at(std::int64_t image, std::int64_t channel, std::int64_t row, std::int64_t column) const {
    return blocks[static_cast<std::size_t>((((image * 2 + channel / 2) * 3 + row) * 5 + column) * 2 + channel % 2)];
  }

  Numbers blocks = Numbers(2 * 4 * 3 * 5);
  Tensor x = tensor(blocks, {2, 2, 3, 5, 2});
};

TEST_F(ComputeTest, PoolingByHand) {
  const Planes planes;
  const Numbers scale{1, -2, 0.5f, 3}, shift{0.1f, -0.2f, 0, 0.3f};
  for (const std::int64_t window : {1, 2}) {
    for (const Activation activation : {Activation::none, Activation::relu}) {
      const std::int64_t rows = 3 / window, columns = 5 / window;
      Numbers pooled(static_cast<std::size_t>(2 * 4 * rows * columns)), ones(pooled.size(), 1),
          d(planes.blocks.size(), NAN);
      const Shape shape{2, 4, rows, columns};
      const Tensor of_scale = tensor(scale, {4}), of_shift = tensor(shift, {4});
      compute->pool(window, activation, planes.x, of_scale, of_shift, tensor(pooled, shape));
      compute->pool_backward(window, activation, planes.x, of_scale, of_shift, tensor(ones, shape),
                             tensor(d, planes.x.shape));
      std::size_t at = 0;
      std::int64_t passed = 0;
      for (std::int64_t i = 0; i < 8 * rows * columns; ++i, ++at) {
        const std::int64_t image = i / (4 * rows * columns), channel = i / (rows * columns) % 4;
        float most = activation == Activation::relu ? 0 : -INFINITY;
        for (std::int64_t n = 0; n < window * window; ++n) {
          const auto c = static_cast<std::size_t>(channel);
          most = std::max(most, std::fma(planes.at(image, channel, i / columns % rows * window + n / window,
                                                   i % columns * window + n % window),
                                         scale[c], shift[c]));
        }
        EXPECT_NEAR(pooled[at], most, 1e-6) << window << " " << i;
        passed += most > 0 || activation == Activation::none;
      }
      EXPECT_EQ(std::ranges::count(d, 1.0f), passed);
      EXPECT_EQ(std::ranges::count(d, 0.0f), std::ssize(d) - passed);
    }
  }
}

/// A number that is none must reach the loss, wherever in a window it is.
TEST_F(ComputeTest, PoolingLosesNoNaN) {
  for (std::size_t place = 0; place < 4; ++place) {
    Numbers x{1, 2, 3, 4}, pooled(1);
    x[place] = NAN;
    compute->pool(2, Activation::relu, tensor(x, {1, 1, 2, 2, 1}), {}, {}, tensor(pooled, {1, 1, 1, 1}));
    EXPECT_TRUE(std::isnan(pooled[0])) << place;
  }
}

/// Any filter size, stride and padding; the gradients are those of Σ dy·y, which is linear in x and in w.
TEST_F(ComputeTest, ConvolutionOfAnyStrideAndPadding) {
  Random random(9);
  const auto numbers = [&](std::int64_t count) {
    Numbers values(static_cast<std::size_t>(count));
    for (float& value : values) value = random.symmetric(1);
    return values;
  };
  struct Case {
    std::int64_t channels, filters, kernel;
    Convolution how;
  };
  for (const auto& [channels, filters, kernel, how] :
       {Case{1, 32, 3, {}}, Case{3, 6, 3, {.padding = 1}}, Case{2, 16, 5, {.stride = 2, .padding = 2}},
        Case{16, 32, 1, {}}, Case{4, 8, 2, {.stride = 3}}, Case{1, 3, 4, {.stride = 2, .padding = 3}}}) {
    const Shape of_x{2, channels, 7, 9}, of_w{filters, channels, kernel, kernel};
    const Numbers x = numbers(of_x.elements()), w = numbers(of_w.elements()), bias = numbers(filters);
    const Shape of_y = compute->convolved(how, of_x, of_w);
    Numbers y(static_cast<std::size_t>(of_y.elements()));
    compute->convolve(how, tensor(x, of_x), tensor(w, of_w), tensor(bias, {filters}), tensor(y, of_y));
    const auto pixel = [&](std::int64_t e, std::int64_t c, std::int64_t row, std::int64_t column) {
      const bool inside = row >= 0 && row < 7 && column >= 0 && column < 9;
      return inside ? static_cast<double>(x[static_cast<std::size_t>(((e * channels + c) * 7 + row) * 9 + column)]) : 0;
    };
    const std::int64_t block = of_y[4];
    for (std::int64_t i = 0; i < of_y.elements(); ++i) {
      const std::int64_t f = i / (block * of_y[3] * of_y[2]) % of_y[1] * block + i % block;
      const std::int64_t column = i / block % of_y[3], row = i / block / of_y[3] % of_y[2];
      double sum = bias[static_cast<std::size_t>(f)];
      for (std::int64_t n = 0; n < channels * kernel * kernel; ++n) {
        const std::int64_t c = n / (kernel * kernel), r = n / kernel % kernel, k = n % kernel;
        sum += pixel(i / (of_y.elements() / 2), c, row * how.stride - how.padding + r,
                     column * how.stride - how.padding + k) *
               w[static_cast<std::size_t>(f * channels * kernel * kernel + n)];
      }
      ASSERT_NEAR(y[static_cast<std::size_t>(i)], sum, 2e-5) << filters << " " << i;
    }
    const Numbers dy = numbers(of_y.elements());
    Numbers dw(w.size()), dbias(bias.size()), dx(x.size(), NAN), again(w.size());
    compute->convolve_backward(how, tensor(x, of_x), tensor(w, of_w), tensor(dy, of_y), false, tensor(dw, of_w),
                               tensor(dbias, {filters}), tensor(dx, of_x));
    compute->convolve_backward(how, tensor(x, of_x), tensor(w, of_w), tensor(dy, of_y), false, tensor(again, of_w), {},
                               {});
    EXPECT_EQ(dw, again);
    const auto inner = [](const Numbers& a, const Numbers& b) {
      double sum = 0;
      for (std::size_t i = 0; i < a.size(); ++i) sum += static_cast<double>(a[i]) * b[i];
      return sum;
    };
    const double without_bias = inner(dy, y) - inner(dbias, bias);
    EXPECT_NEAR(inner(dw, w), without_bias, 1e-3) << filters;
    EXPECT_NEAR(inner(dx, x), without_bias, 1e-3) << filters;
  }
}

TEST_F(ComputeTest, SumsOfSquaresDependOnlyOnTheNumbers) {
  Random random(2);
  for (const std::size_t count : {1u, 7u, 4096u, 10001u}) {
    Numbers x(count);
    double expected = 0, sum = 0;
    for (float& value : x) {
      value = random.symmetric(1);
      expected += static_cast<double>(value) * value;
    }
    const std::array tensors{view(x)};
    compute->sums_of_squares(tensors, view_scalar(sum));
    EXPECT_NEAR(sum, expected, 1e-12 * expected);
    Numbers value(count), velocity(count);
    float scale = 1;
    double beside = 0;
    const std::array updated{UpdatedTensor{.value = view(value), .gradient = view(x), .first = view(velocity)}};
    compute->sgd({.lr = 1, .gradient_scale = view_scalar(scale)}, updated, view_scalar(beside));
    EXPECT_EQ(sum, beside);
  }
}

TEST_F(ComputeTest, BuffersGrowAndSayWhatTheyAreFor) {
  Buffer buffer;
  const Tensor small = buffer.make(*compute, DType::bf16, {3, 5}, "numbers");
  EXPECT_EQ(small.bytes(), 30u);
  EXPECT_EQ(buffer.make(*compute, DType::f32, {7}, "numbers").data, small.data);
  EXPECT_EQ(buffer.bytes(), 30u);
}

TEST_F(ComputeTest, ABufferThatIsTooLargeIsAnError) {
  if (sanitized) GTEST_SKIP() << "sanitizers end the process";
  Buffer buffer;
  const auto error =
      testing::error_of([&] { (void)buffer.make(*compute, DType::f32, {std::int64_t{1} << 60}, "numbers"); });
  EXPECT_NE(error.find("numbers"), std::string::npos) << error;
}

TEST_F(ComputeTest, ADeviceWithoutImplementationIsAnError) {
  EXPECT_EQ(testing::error_of([] { make_compute({.kind = DeviceKind::cuda}); }),
            "models cannot run on a GPU (this build computes on the host only); leave the device out");
}

TEST(KeptFew, ForgetsTheLeastRecentlyUsed) {
  KeptFew<int, int> kept(2);
  int made = 0;
  const auto at = [&](int key) { return kept.at(key, [&] { return ++made; }); };
  EXPECT_EQ(at(1), 1);
  EXPECT_EQ(at(2), 2);
  EXPECT_EQ(at(1), 1);
  EXPECT_EQ(at(3), 3);  // 2 is forgotten
  EXPECT_EQ(at(1), 1);
  EXPECT_EQ(at(2), 4);
  EXPECT_EQ(kept.size(), 2u);
}

}  // namespace
}  // namespace kolo::models
