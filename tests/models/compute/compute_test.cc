#include "models/compute/compute.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <vector>

#include <kolo/detail/cpu.h>

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
  Numbers sums(3, 7);
  compute->product({.transpose_a = true, .sums = tensor(sums, {3})}, d, a, tensor(dw, {3, 2}));
  EXPECT_EQ(sums, (Numbers{1, 1, 3}));
  compute->product({.transpose_a = true, .add = true, .sums = tensor(sums, {3})}, d, a, tensor(dw, {3, 2}));
  EXPECT_EQ(sums, (Numbers{2, 2, 6}));
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

Numbers random_numbers(Random& random, std::int64_t count) {
  Numbers values(static_cast<std::size_t>(count));
  for (float& value : values) value = random.symmetric(1);
  return values;
}

/// Pooling without any vectors, of planes [planes, rows, columns]: the largest, and for each pixel how often it is
/// that.
struct PooledByHand {
  PooledByHand(const Pooling& how, const Numbers& x, std::int64_t rows, std::int64_t columns, float floor)
      : height(extent_behind(rows, how.window, how.step(), how.padding)),
        width(extent_behind(columns, how.window, how.step(), how.padding)),
        taken(x.size()) {
    for (std::int64_t first = 0; first < std::ssize(x); first += rows * columns) {
      for (std::int64_t window = 0; window < height * width; ++window) {
        float most = floor;
        std::int64_t which = -1;
        for (std::int64_t n = 0; n < how.window * how.window; ++n) {
          const std::int64_t row = window / width * how.step() - how.padding + n / how.window;
          const std::int64_t column = window % width * how.step() - how.padding + n % how.window;
          if (row < 0 || row >= rows || column < 0 || column >= columns) continue;
          const std::int64_t at = first + row * columns + column;
          if (x[static_cast<std::size_t>(at)] > most) {
            most = x[static_cast<std::size_t>(at)];
            which = at;
          }
        }
        y.push_back(most);
        if (which >= 0) ++taken[static_cast<std::size_t>(which)];
      }
    }
  }

  std::int64_t height, width;
  Numbers y, taken;
};

constexpr std::array poolings{Pooling{},
                              Pooling{.window = 2},
                              Pooling{.window = 3},
                              Pooling{.window = 3, .stride = 2, .padding = 1},
                              Pooling{.window = 2, .stride = 1},
                              Pooling{.window = 2, .stride = 3, .padding = 1},
                              Pooling{.window = 7, .stride = 1, .padding = 3},
                              Pooling{.window = 1, .stride = 2}};

TEST_F(ComputeTest, PoolingOfAnyWindowStrideAndPadding) {
  Random random(3);
  for (const Pooling& how : poolings) {
    const Shape of_x{2, 3, 7, 21};
    const Numbers x = random_numbers(random, of_x.elements());
    const PooledByHand expected(how, x, 7, 21, -INFINITY);
    const Shape of_y{2, 3, expected.height, expected.width}, of_choices = compute->choices({.pooling = how}, of_x);
    Numbers y(expected.y.size(), NAN), d(x.size(), NAN);
    const Numbers ones(y.size(), 1);
    std::vector<std::uint16_t> choices(static_cast<std::size_t>(of_choices.elements()));
    compute->pool(how, tensor(x, of_x), tensor(y, of_y), view(choices.data(), of_choices));
    EXPECT_EQ(y, expected.y) << how.window << " " << how.stride;
    compute->pool_backward(how, view(choices.data(), of_choices), tensor(ones, of_y), tensor(d, of_x));
    EXPECT_EQ(d, expected.taken) << how.window << " " << how.stride;
  }
}

TEST_F(ComputeTest, OfEqualPixelsTheFirstGetsTheGradient) {
  const Numbers x(4, -2), ones(1, 1);
  Numbers y(1), d(4);
  std::vector<std::uint16_t> choices(
      static_cast<std::size_t>(compute->choices({.pooling = {2}}, {1, 1, 2, 2}).elements()));
  const Tensor chosen = view(choices.data(), {std::ssize(choices)});
  compute->pool({2}, tensor(x, {1, 1, 2, 2}), tensor(y, {1, 1, 1, 1}), chosen);
  compute->pool_backward({2}, chosen, tensor(ones, {1, 1, 1, 1}), tensor(d, {1, 1, 2, 2}));
  EXPECT_EQ(d, (Numbers{1, 0, 0, 0}));
}

/// A number that is none must reach the loss, wherever in a window it is.
TEST_F(ComputeTest, PoolingLosesNoNaN) {
  const Numbers one{1}, none{0};
  const ImageStage stage{.filters = tensor(one, {1, 1, 1, 1}),
                         .bias = tensor(none, {1}),
                         .activation = Activation::relu,
                         .pooling = {.window = 2}};
  for (std::size_t place = 0; place < 4; ++place) {
    Numbers x{1, 2, 3, 4}, pooled(1);
    x[place] = NAN;
    const Shape of_x{1, 1, 2, 2}, of_choices = compute->choices(stage, of_x);
    std::vector<std::uint16_t> choices(static_cast<std::size_t>(of_choices.elements()));
    compute->convolve(stage, tensor(x, of_x), tensor(pooled, of_x), view(choices.data(), of_choices));
    EXPECT_TRUE(std::isnan(pooled[0])) << place;
    pooled[0] = 0;
    compute->pool(stage.pooling, tensor(x, of_x), tensor(pooled, of_x), view(choices.data(), of_choices));
    EXPECT_TRUE(std::isnan(pooled[0])) << place;
  }
}

/// Any filter size, stride and padding, with every pooling. The gradients are those of Σ d·y, which is linear in x and
/// in w where no other pixel becomes the largest.
TEST_F(ComputeTest, StagesOfAnyStrideAndPadding) {
  Random random(9);
  struct Case {
    std::int64_t channels, filters, kernel;
    Convolution how;
  };
  for (const auto& [channels, filters, kernel, how] :
       {Case{1, 32, 3, {}}, Case{3, 6, 3, {.padding = 1}}, Case{2, 16, 5, {.stride = 2, .padding = 2}},
        Case{16, 32, 1, {}}, Case{4, 8, 2, {.stride = 3}}, Case{1, 3, 4, {.stride = 2, .padding = 3}}}) {
    for (const Pooling& pooling : poolings) {
      constexpr std::int64_t height = 13, width = 27;
      const Shape of_x{2, channels, height, width}, of_w{filters, channels, kernel, kernel};
      const Numbers x = random_numbers(random, of_x.elements()), w = random_numbers(random, of_w.elements());
      const Numbers bias = random_numbers(random, filters), scale = random_numbers(random, filters);
      const std::int64_t rows = extent_behind(height, kernel, how.stride, how.padding);
      const std::int64_t columns = extent_behind(width, kernel, how.stride, how.padding);
      const auto pixel = [&](std::int64_t e, std::int64_t c, std::int64_t row, std::int64_t column) {
        const bool inside = row >= 0 && row < height && column >= 0 && column < width;
        const auto at = static_cast<std::size_t>(((e * channels + c) * height + row) * width + column);
        return inside ? static_cast<double>(x[at]) : 0;
      };
      Numbers convolved;
      for (std::int64_t i = 0; i < 2 * filters * rows * columns; ++i) {
        const std::int64_t f = i / (rows * columns) % filters;
        double sum = bias[static_cast<std::size_t>(f)];
        for (std::int64_t n = 0; n < channels * kernel * kernel; ++n) {
          sum += pixel(i / (filters * rows * columns), n / (kernel * kernel),
                       i / columns % rows * how.stride - how.padding + n / kernel % kernel,
                       i % columns * how.stride - how.padding + n % kernel) *
                 w[static_cast<std::size_t>(f * channels * kernel * kernel + n)];
        }
        convolved.push_back(static_cast<float>(sum * scale[static_cast<std::size_t>(f)]));
      }
      for (const Activation activation : {Activation::none, Activation::relu}) {
        const bool relu = activation == Activation::relu;
        const PooledByHand expected(pooling, convolved, rows, columns, relu ? 0 : -INFINITY);
        const Numbers shift(static_cast<std::size_t>(filters), 0);
        ImageStage stage{.convolution = how,
                         .filters = tensor(w, of_w),
                         .bias = tensor(bias, {filters}),
                         .scale = tensor(scale, {filters}),
                         .shift = tensor(shift, {filters}),
                         .activation = activation,
                         .pooling = pooling};
        const Shape of_y = stage.output(of_x), of_choices = compute->choices(stage, of_x);
        ASSERT_EQ(of_y, (Shape{2, filters, expected.height, expected.width}));
        Numbers y(expected.y.size(), NAN);
        std::vector<std::uint16_t> choices(static_cast<std::size_t>(of_choices.elements()));
        const Tensor chosen = view(choices.data(), of_choices);
        compute->convolve(stage, tensor(x, of_x), tensor(y, of_y), chosen);
        for (std::size_t i = 0; i < y.size(); ++i) ASSERT_NEAR(y[i], expected.y[i], 3e-5) << filters << " " << i;

        stage.scale = stage.shift = {};
        compute->convolve(stage, tensor(x, of_x), tensor(y, of_y), chosen);
        const Numbers d = random_numbers(random, of_y.elements());
        Numbers dw(w.size()), dbias(bias.size()), dx(x.size(), NAN), again(w.size());
        compute->convolve_backward(stage, tensor(x, of_x), chosen, tensor(d, of_y), false, tensor(dw, of_w),
                                   tensor(dbias, {filters}), tensor(dx, of_x));
        compute->convolve_backward(stage, tensor(x, of_x), chosen, tensor(d, of_y), false, tensor(again, of_w), {}, {});
        EXPECT_EQ(dw, again);
        const auto inner = [](const Numbers& a, const Numbers& b) {
          double sum = 0;
          for (std::size_t i = 0; i < a.size(); ++i) sum += static_cast<double>(a[i]) * b[i];
          return sum;
        };
        const double without_bias = inner(d, y) - inner(dbias, bias);
        EXPECT_NEAR(inner(dw, w), without_bias, 2e-3) << filters << " " << pooling.window << " " << pooling.stride;
        EXPECT_NEAR(inner(dx, x), without_bias, 2e-3) << filters << " " << pooling.window << " " << pooling.stride;
        compute->convolve_backward(stage, tensor(x, of_x), chosen, tensor(d, of_y), true, tensor(again, of_w), {}, {});
        for (std::size_t i = 0; i < dw.size(); ++i) EXPECT_EQ(again[i], 2 * dw[i]);
      }
    }
  }
}

TEST_F(ComputeTest, DenormalsAreZeroWithinOperationsAlone) {
  if (!detail::on_x86) GTEST_SKIP() << "only x86 processors are told so";
  const Numbers tiny{1e-30f}, small{1e-10f}, denormal{1e-39f}, none{0};
  Numbers result{1};
  compute->product({}, tensor(tiny, {1, 1}), tensor(small, {1, 1}), tensor(result, {1, 1}));
  EXPECT_EQ(result[0], 0) << "a result";
  compute->add(tensor(denormal, {1}), tensor(none, {1}), tensor(result, {1}));
  EXPECT_EQ(result[0], 0) << "an operand";
  const volatile float a = tiny[0], b = small[0];
  EXPECT_GT(a * b, 0) << "here they count";
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
    std::array<float, 2> scale{1, 1};
    double beside = 0;
    const std::array updated{UpdatedTensor{.value = view(value), .gradient = view(x), .first = view(velocity)}};
    compute->sgd({.lr = 1, .gradient_scale = view(std::span(scale))}, updated, view_scalar(beside));
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
