#include "models/compute/kernels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <vector>

#include <kolo/float16.h>

#include "models/compute/random.h"
#include "tests/models/models_testing.h"

// Every loop, compiled for every kind of processor that this one can run, against the same in double.

namespace kolo::models {
namespace {

std::vector<float> random_floats(std::int64_t count, float bound, std::uint64_t seed) {
  Random random(seed);
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = random.symmetric(bound);
  return values;
}

MatmulItem* work(std::vector<float>& values) {
  return reinterpret_cast<MatmulItem*>(values.data());
}
MatmulItem* work(std::vector<std::uint16_t>& values) {
  return reinterpret_cast<MatmulItem*>(values.data());
}

struct Named {
  std::string name;
  const KernelSet* set;
};

std::vector<Named> usable() {
  using enum kolo::detail::InstructionSet;
  std::vector<Named> all{{"baseline", &kernel_set(baseline)}};
  if (kolo::detail::instruction_set() >= avx2) all.push_back({"avx2", &kernel_set(avx2)});
  if (kolo::detail::instruction_set() >= avx512) all.push_back({"avx512", &kernel_set(avx512)});
  return all;
}

class KernelTest : public ::testing::TestWithParam<Named> {
 protected:
  const Kernels& f32() const { return GetParam().set->f32; }
};

TEST_P(KernelTest, RmsNormAndBack) {
  for (const std::int64_t dim : {5, 16, 37, 64}) {
    constexpr std::int64_t rows = 3;
    const auto x = random_floats(rows * dim, 2, 1), more = random_floats(rows * dim, 2, 2);
    const auto gain = random_floats(dim, 1, 3), dh = random_floats(rows * dim, 1, 4);
    const auto size = static_cast<std::size_t>(dim);
    std::vector<float> sum(rows * size), h(rows * size), inverse(rows), d(rows * size, 0.5f), d_gain(size, 0.25f);
    f32().rms_norm(rows, dim, x.data(), more.data(), sum.data(), gain.data(), 1e-5, work(h), inverse.data());
    std::vector<float> d_rounded(rows * size);
    f32().rms_norm_backward(rows, dim, sum.data(), gain.data(), inverse.data(), dh.data(), d.data(), d_gain.data(),
                            work(d_rounded));
    EXPECT_EQ(d, d_rounded);
    std::vector<double> expected_gain(size, 0.25);
    for (std::size_t row = 0; row < rows; ++row) {
      double squares = 0, products = 0;
      for (std::size_t i = 0; i < size; ++i) {
        const double value = static_cast<double>(x[row * size + i]) + more[row * size + i];
        squares += value * value;
        products += value * dh[row * size + i] * gain[i];
      }
      const double r = 1 / std::sqrt(squares / static_cast<double>(dim) + 1e-5);
      for (std::size_t i = 0; i < size; ++i) {
        const std::size_t at = row * size + i;
        const double value = static_cast<double>(x[at]) + more[at];
        EXPECT_NEAR(h[at], value * r * gain[i], 1e-6);
        EXPECT_NEAR(d[at], 0.5 + dh[at] * gain[i] * r - value * r * r * r * products / static_cast<double>(dim), 2e-6);
        expected_gain[i] += dh[at] * value * r;
      }
    }
    for (std::size_t i = 0; i < size; ++i) EXPECT_NEAR(d_gain[i], expected_gain[i], 2e-6);
  }
}

TEST_P(KernelTest, SwigluAndBackInPlace) {
  for (const std::int64_t ffn : {1, 16, 50}) {
    constexpr std::int64_t rows = 2;
    auto gate_up = random_floats(rows * 2 * ffn, 6, 1);
    const auto ds = random_floats(rows * ffn, 1, 2);
    gate_up[0] = 100;  // exponentials of both ends
    gate_up[static_cast<std::size_t>(2 * ffn)] = -100;
    std::vector<float> s(ds.size()), s_again = ds;
    f32().swiglu(rows, ffn, gate_up.data(), work(s));
    std::vector<float> d = gate_up;
    f32().swiglu_backward(rows, ffn, d.data(), s_again.data(), work(d), work(s_again));
    EXPECT_EQ(s, s_again);
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::int64_t i = 0; i < ffn; ++i) {
        const auto at = static_cast<std::size_t>(row * ffn + i), gate = static_cast<std::size_t>(row * 2 * ffn + i);
        const auto up = gate + static_cast<std::size_t>(ffn);
        const double g = gate_up[gate], soft = 1 / (1 + std::exp(-g)), silu = g * soft;
        EXPECT_NEAR(s[at], silu * gate_up[up], 1e-6 * (1 + std::abs(silu * gate_up[up])));
        EXPECT_NEAR(d[up], ds[at] * silu, 1e-6 * (1 + std::abs(silu)));
        EXPECT_NEAR(d[gate], ds[at] * gate_up[up] * (soft + silu * (1 - soft)), 4e-6);
      }
    }
  }
}

/// One head's attention and its gradients, all scores at once.
struct Reference {
  Reference(const HeadView& head, const std::vector<float>& d_out)
      : out(d_out.size()), dq(d_out.size()), dk(d_out.size()), dv(d_out.size()) {
    const std::int64_t width = head.head_dim;
    const auto at = [&](const float* rows, std::int64_t row, std::int64_t i) {
      return static_cast<double>(rows[row * head.width + i]);
    };
    for (std::int64_t row = 0; row < head.positions; ++row) {
      std::vector<double> weight(static_cast<std::size_t>(row) + 1), dp(weight.size());
      double sum = 0, inner = 0;
      for (std::int64_t key = 0; key <= row; ++key) {
        const auto index = static_cast<std::size_t>(key);
        double score = 0;
        for (std::int64_t i = 0; i < width; ++i) score += at(head.q, row, i) * at(head.k, key, i);
        weight[index] = std::exp(score);
        sum += weight[index];
      }
      for (std::int64_t key = 0; key <= row; ++key) {
        const auto index = static_cast<std::size_t>(key);
        weight[index] /= sum;
        for (std::int64_t i = 0; i < width; ++i) {
          const auto o = static_cast<std::size_t>(row * width + i), v = static_cast<std::size_t>(key * width + i);
          out[o] += weight[index] * at(head.v, key, i);
          dv[v] += weight[index] * d_out[o];
          dp[index] += d_out[o] * at(head.v, key, i);
        }
        inner += weight[index] * dp[index];
      }
      for (std::int64_t key = 0; key <= row; ++key) {
        const auto index = static_cast<std::size_t>(key);
        const double ds = weight[index] * (dp[index] - inner);
        for (std::int64_t i = 0; i < width; ++i) {
          dq[static_cast<std::size_t>(row * width + i)] += ds * at(head.k, key, i);
          dk[static_cast<std::size_t>(key * width + i)] += ds * at(head.q, row, i);
        }
      }
    }
  }

  std::vector<double> out, dq, dk, dv;
};

double difference(const std::vector<float>& rows, std::int64_t stride, const std::vector<double>& expected,
                  std::int64_t width) {
  double error = 0, norm = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const auto row = static_cast<std::int64_t>(i) / width, column = static_cast<std::int64_t>(i) % width;
    const double off = rows[static_cast<std::size_t>(row * stride + column)] - expected[i];
    error += off * off;
    norm += expected[i] * expected[i];
  }
  return std::sqrt(error / norm);
}

TEST_P(KernelTest, AttentionIsThatOfAllScoresAtOnce) {
  for (const auto& [positions, head_dim] : {std::pair{1, 8}, {33, 12}, {100, 16}, {300, 32}, {600, 34}}) {
    const std::int64_t width = (head_dim + 15) / 16 * 16;
    auto q = random_floats(positions * width, 1.5f, 1), k = random_floats(positions * width, 1.5f, 2);
    auto v = random_floats(positions * width, 1, 3);
    for (std::vector<float>* rows : {&q, &k, &v}) {
      for (std::size_t i = 0; i < rows->size(); ++i) {
        if (static_cast<std::int64_t>(i) % width >= head_dim) (*rows)[i] = 0;
      }
    }
    const HeadView head{.positions = positions,
                        .width = width,
                        .head_dim = head_dim,
                        .q = q.data(),
                        .k = k.data(),
                        .v = v.data(),
                        .out_stride = head_dim};
    const auto d_out = random_floats(positions * head_dim, 1, 4);
    std::vector<float> out(d_out.size()), log_sums(static_cast<std::size_t>(positions));
    std::vector<float> scratch(static_cast<std::size_t>(attention_scratch(width)), NAN);
    f32().attend(head, work(out), log_sums.data(), scratch.data());
    std::vector<float> dq(q.size(), NAN), dk(q.size()), dv(q.size());
    std::ranges::fill(scratch, NAN);
    f32().attend_backward(head, work(out), log_sums.data(), d_out.data(), {dq.data(), dk.data(), dv.data()},
                          scratch.data());
    const Reference expected(head, d_out);
    EXPECT_LT(difference(out, head_dim, expected.out, head_dim), 1e-6) << positions;
    EXPECT_LT(difference(dv, width, expected.dv, head_dim), 1e-6) << positions;
    if (positions == 1) continue;  // one weight of 1 has no gradient
    EXPECT_LT(difference(dq, width, expected.dq, head_dim), 2e-6) << positions;
    EXPECT_LT(difference(dk, width, expected.dk, head_dim), 2e-6) << positions;
  }
}

/// Every 16-bit number, and floats of every size: as <kolo/float16.h> converts them one by one.
template <class Half>
void expect_conversions(Precision precision, const Kernels& kernels, Half (*rounded)(float)) {
  std::vector<std::uint16_t> halves(65536), narrowed(65536), scaled(65536);
  std::vector<float> widened(65536), numbers(65536), values(65536);
  std::iota(halves.begin(), halves.end(), std::uint16_t{0});
  kernels.widen(std::ssize(halves), work(halves), widened.data());
  from_half(precision, halves, numbers);
  Random random(7);
  for (float& value : values) value = std::bit_cast<float>(static_cast<std::uint32_t>(random.next()));
  kernels.narrow(std::ssize(values), values.data(), work(narrowed));
  to_half(precision, values, 0.01f, scaled);
  for (std::size_t i = 0; i < halves.size(); ++i) {
    const auto number = std::bit_cast<std::uint32_t>(to_float(Half{halves[i]}));
    ASSERT_EQ(std::bit_cast<std::uint32_t>(widened[i]), number) << i;
    ASSERT_EQ(std::bit_cast<std::uint32_t>(numbers[i]), number) << i;
    ASSERT_EQ(narrowed[i], rounded(values[i]).bits) << values[i];
    ASSERT_EQ(scaled[i], rounded(0.01f * values[i]).bits) << values[i];
  }
}

TEST_P(KernelTest, SixteenBitFloatsAreConvertedAsEverywhere) {
  expect_conversions<BFloat16>(Precision::bf16, GetParam().set->bf16, to_bfloat16);
  expect_conversions<Float16>(Precision::f16, GetParam().set->f16, to_float16);
}

/// Two parts of 48 numbers, 64 apart, and 5 taps: two registers' worth and a rest of both.
struct Taps {
  static constexpr std::int64_t plane = 64, count = 48, taps = 5, filter = 2 * plane;
  std::vector<std::int64_t> offsets{0, 1, 7, 130, 3, 64, 65, 2, 140, 9};
  TapView view{.taps = taps, .parts = 2, .filter = filter, .plane = plane, .count = count, .offsets = offsets.data()};
  std::vector<float> in = random_floats(256, 1, 1), rows = random_floats(filters_at_a_time * filter, 1, 2);

  /// Where tap t finds its number for place i of a part.
  float input(std::int64_t part, std::int64_t t, std::int64_t i) const {
    return in[static_cast<std::size_t>(offsets[static_cast<std::size_t>(part * taps + t)] + i)];
  }
};

TEST_P(KernelTest, CorrelationsAndBack) {
  const Taps taps;
  const auto weights = random_floats(Taps::taps * filters_at_a_time, 1, 3), first = random_floats(4, 1, 4);
  std::vector<float> out(taps.rows.size()), sums(Taps::taps * filters_at_a_time * vector_floats);
  f32().correlate(taps.view, weights.data(), first.data(), taps.in.data(), out.data());
  f32().correlate_back(taps.view, taps.rows.data(), taps.in.data(), sums.data());
  for (std::int64_t row = 0; row < filters_at_a_time; ++row) {
    for (std::int64_t part = 0; part < 2; ++part) {
      for (std::int64_t i = 0; i < Taps::count; ++i) {
        double sum = first[static_cast<std::size_t>(row)];
        for (std::int64_t t = 0; t < Taps::taps; ++t) {
          sum += static_cast<double>(taps.input(part, t, i)) * weights[static_cast<std::size_t>(t * 4 + row)];
        }
        EXPECT_NEAR(out[static_cast<std::size_t>(row * Taps::filter + part * Taps::plane + i)], sum, 1e-6);
      }
    }
    for (std::int64_t t = 0; t < Taps::taps; ++t) {
      double sum = 0;
      for (std::int64_t i = 0; i < 2 * Taps::count; ++i) {
        const std::int64_t part = i / Taps::count, place = i % Taps::count;
        sum +=
            static_cast<double>(taps.rows[static_cast<std::size_t>(row * Taps::filter + part * Taps::plane + place)]) *
            taps.input(part, t, place);
      }
      const float* const lanes = sums.data() + (t * filters_at_a_time + row) * vector_floats;
      EXPECT_NEAR(std::accumulate(lanes, lanes + vector_floats, 0.0), sum, 1e-5);
    }
  }
}

TEST_P(KernelTest, PlanesAreSummedWhereAnImageIs) {
  constexpr std::int64_t count = 48;
  const auto x = random_floats(count, 1, 1), d = random_floats(count, 1, 2);
  std::vector<std::int32_t> inside(count);
  for (std::size_t i = 0; i < inside.size(); ++i) inside[i] = i % 3 == 0 ? 0 : -1;
  float sum = 0, square = 0;
  f32().plane_sums(count, x.data(), inside.data(), 0.5f, &sum, &square);
  const float products = f32().plane_products(count, d.data(), x.data(), inside.data(), 0.5f);
  auto combined = d;
  const float total = f32().combine_planes(count, 2, 3, 4, x.data(), inside.data(), combined.data());
  double sums = 0, squares = 0, both = 0, all = 0;
  for (std::size_t i = 0; i < inside.size(); ++i) {
    const double apart = inside[i] * -1.0 * (x[i] - 0.5), expected = inside[i] * -1.0 * (2 * d[i] + 3 * x[i] + 4);
    sums += apart;
    squares += apart * apart;
    both += d[i] * apart;
    all += expected;
    EXPECT_NEAR(combined[i], expected, 1e-6);
  }
  EXPECT_NEAR(sum, sums, 1e-5);
  EXPECT_NEAR(square, squares, 1e-5);
  EXPECT_NEAR(products, both, 1e-5);
  EXPECT_NEAR(total, all, 1e-4);
}

/// Windows of two pixels in three rows of 21, some of which are not in the image.
TEST_P(KernelTest, PoolingAndBack) {
  constexpr std::int64_t rows = 3, columns = 21, pitch = 23, plane = 96;
  const auto planes = random_floats(2 * plane, 1, 1), d = random_floats(rows * columns, 1, 2);
  const std::vector<std::int64_t> offsets{0, plane + 1};
  std::vector<std::int32_t> inside(2 * plane, -1);
  for (std::size_t i = 0; i < inside.size(); i += 4) inside[i] = 0;
  for (const bool padded : {false, true}) {
    PoolView view{.pixels = 2,
                  .rows = rows,
                  .columns = columns,
                  .pitch = pitch,
                  .plane = plane,
                  .parts = 2,
                  .tiled = true,
                  .offsets = offsets.data(),
                  .inside = padded ? inside.data() : nullptr,
                  .scale = -2,
                  .shift = 0.25f};
    std::vector<float> y(rows * columns), back(2 * plane), added(2 * plane, NAN);
    std::vector<std::uint16_t> chosen(static_cast<std::size_t>(rows * view.width()));
    f32().pool(view, planes.data(), y.data(), chosen.data());
    const float sum = f32().pool_backward(view, d.data(), chosen.data(), back.data());
    view.tiled = false;
    EXPECT_EQ(f32().pool_backward(view, d.data(), chosen.data(), added.data()), sum);
    EXPECT_EQ(added, back);
    std::vector<float> expected(2 * plane);
    double total = 0;
    for (std::int64_t i = 0; i < rows * columns; ++i) {
      const auto at = static_cast<std::size_t>(i);
      float most = 0;
      std::int64_t which = 2;
      for (std::int64_t n = 0; n < 2; ++n) {
        const auto pixel =
            static_cast<std::size_t>(offsets[static_cast<std::size_t>(n)] + i / columns * pitch + i % columns);
        const float value = std::fma(planes[pixel], -2.0f, 0.25f);
        if ((padded && inside[pixel] == 0) || value <= most) continue;
        most = value;
        which = n;
      }
      EXPECT_NEAR(y[at], most, 1e-6);
      EXPECT_EQ(chosen[static_cast<std::size_t>(i / columns * view.width() + i % columns)], which);
      if (which == 2) continue;
      expected[static_cast<std::size_t>(offsets[static_cast<std::size_t>(which)] + i / columns * pitch + i % columns)] =
          d[at];
      total += d[at];
    }
    EXPECT_EQ(back, expected);
    EXPECT_NEAR(sum, total, 1e-5);
  }
}

TEST_P(KernelTest, CrossEntropyOfManyClasses) {
  for (const std::int64_t classes : {1, 3, 16, 259}) {
    auto logits = random_floats(classes, 20, 1);
    const std::int64_t target = classes / 2;
    std::vector<float> gradient(logits.size());
    std::int64_t largest = -1;
    const double loss = f32().cross_entropy(classes, logits.data(), target, 2, gradient.data(), &largest);
    EXPECT_EQ(largest, std::ranges::max_element(logits) - logits.begin());
    double sum = 0;
    for (const float logit : logits) sum += std::exp(static_cast<double>(logit));
    EXPECT_NEAR(loss, std::log(sum) - logits[static_cast<std::size_t>(target)], 2e-6 * (1 + loss));
    for (std::int64_t i = 0; i < classes; ++i) {
      const auto at = static_cast<std::size_t>(i);
      EXPECT_NEAR(gradient[at], 2 * (std::exp(static_cast<double>(logits[at])) / sum - (i == target)), 1e-6);
    }
    f32().cross_entropy(classes, logits.data(), target, 2, logits.data(), &largest);  // in place
    EXPECT_EQ(logits, gradient);
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, KernelTest, ::testing::ValuesIn(usable()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace kolo::models
