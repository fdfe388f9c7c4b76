// Operations of CudaCompute beside the same of the host: on a pretended GPU, which runs the kernels on the host
// (host_device.cc), or on a real one (card.cc).

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "models/compute/buffer.h"
#include "models/compute/random.h"
#include "models/compute/views.h"
#include "tests/gpu/pairs.h"
#include "tests/models/cuda/host_device.h"
#include "tests/models/models_testing.h"

namespace kolo::models {
namespace {

using smoke::Pair;
using testing::host_devices;

class CudaComputeTest : public ::testing::Test {
 protected:
  CudaComputeTest() { host_devices() = {}; }
  void SetUp() override {
    if (!testing::has_gpu()) GTEST_SKIP() << "no GPU";
    all.emplace();
    cpu = &all->cpu();
    gpu = &all->gpu();
  }

  Pair floats(const Shape& shape, const std::vector<float>& values) { return all->floats(shape, values); }
  Pair floats(const Shape& shape) { return all->floats(shape); }
  Pair items(DType dtype, const Shape& shape) { return all->items(dtype, shape); }
  Pair kept(DType dtype, const Shape& shape) { return all->kept(dtype, shape); }
  Pair integers(const std::vector<std::int32_t>& values) { return all->integers(values); }
  Pair doubles(std::int64_t count, double value = NAN) { return all->doubles(count, value); }
  Pair choices(const Shape& shape) { return all->choices(shape); }
  std::vector<float> numbers(const Shape& shape) { return all->numbers(shape.elements()); }
  /// operation(compute, of) on both; of(pair) is the pair's tensor there.
  void both(const smoke::Operation& operation) { all->run(operation); }

  std::optional<smoke::Both> all;
  Compute *cpu = nullptr, *gpu = nullptr;
};

constexpr std::array all_items{DType::f32, DType::bf16, DType::f16};

/// Differences of sums of up to some hundred numbers; of what is rounded to 16 bits, a unit of its last place.
double tolerance(DType dtype) {
  return dtype == DType::f32 ? 3e-6 : smoke::tolerance(dtype);
}

TEST_F(CudaComputeTest, FillCastAndAdd) {
  const Shape shape{3, 700};
  const Pair a = floats(shape), b = floats(shape), sum = floats(shape), wide = doubles(1030);
  both([&](Compute& compute, auto of) {
    compute.add(of(a), of(b), of(sum));
    compute.fill(of(b), 0.3);
    compute.fill(of(wide), 0.3);
  });
  EXPECT_TRUE(sum.same_bits() && b.same_bits() && wide.same_bits());
  for (const DType dtype : {DType::bf16, DType::f16}) {
    const Pair narrow = items(dtype, shape), back = floats(shape);
    both([&](Compute& compute, auto of) {
      compute.cast(of(a), of(narrow));
      compute.cast(of(narrow), of(back));
    });
    EXPECT_TRUE(narrow.same_bits() && back.same_bits());
  }
}

TEST_F(CudaComputeTest, ProductsOfEveryKind) {
  for (const DType dtype : all_items) {
    for (int kind = 0; kind < 16; ++kind) {
      const std::int64_t m = 70, n = 67, k = 33;
      Product how{.transpose_a = (kind & 1) != 0, .transpose_b = (kind & 2) != 0};
      const Pair a = items(dtype, how.transpose_a ? Shape{k, m} : Shape{m, k});
      const Pair b = items(dtype, how.transpose_b ? Shape{n, k} : Shape{k, n});
      const Pair bias = floats({n}), c = floats({m, n});
      how.add = kind / 4 == 1;
      if (kind / 4 == 3) how.activation = Activation::relu;
      both([&](Compute& compute, auto of) {
        if (kind / 4 >= 2) how.bias = of(bias);
        compute.product(how, of(a), of(b), of(c));
      });
      EXPECT_LT(c.difference(), 1e-5) << kind;
    }
  }
  EXPECT_TRUE(host_devices().launches == 0 || host_devices().products == 48);  // a real GPU counts nothing
}

/// What layers of a model in bf16 pass each other.
TEST_F(CudaComputeTest, ProductsThatAreRoundedAtOnce) {
  for (const bool transpose_b : {false, true}) {
    const Pair a = items(DType::bf16, {70, 33}), b = items(DType::bf16, transpose_b ? Shape{67, 33} : Shape{33, 67});
    const Pair c = floats({70, 67}), rounded = items(DType::bf16, {70, 67});
    both([&](Compute& compute, auto of) {
      const bool kept = compute.kept(DType::bf16) == DType::bf16;
      compute.product({.transpose_b = transpose_b}, of(a), of(b), kept ? of(rounded) : of(c));
      if (kept) compute.cast(of(rounded), of(c));
    });
    EXPECT_LT(c.difference(), 1.0 / 256);
  }
}

TEST_F(CudaComputeTest, ALayersOutputThatIsRoundedAtOnce) {
  for (const bool library : {false, true}) {
    host_devices().library = library;
    const Pair x = items(DType::bf16, {70, 33}), w = items(DType::bf16, {67, 33}), bias = kept(DType::bf16, {67});
    const Pair y = kept(DType::bf16, {70, 67});
    both([&](Compute& compute, auto of) {
      compute.product({.transpose_b = true, .bias = of(bias), .activation = Activation::relu}, of(x), of(w), of(y));
    });
    EXPECT_LT(y.difference(), 1.0 / 256);
  }
}

TEST_F(CudaComputeTest, ProductsWithSumsBeside) {
  for (const bool library : {false, true}) {
    host_devices().library = library;
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const Pair d = kept(dtype, {70, 33}), x = items(dtype, {70, 19}), c = floats({33, 19}), sums = floats({33});
      const Pair of_host = items(dtype, {70, 33});  // whose products are of 16 bits, and sums of f32
      for (const bool add : {false, true}) {
        both([&](Compute& compute, auto of) {
          Product how{.transpose_a = true, .add = add, .sums = of(sums)};
          if (&compute == gpu || dtype == DType::f32) return compute.product(how, of(d), of(x), of(c));
          how.sums = {};
          compute.cast(of(d), of(of_host));
          compute.product(how, of(of_host), of(x), of(c));
          compute.bias_backward({}, of(d), add, of(sums));
        });
        EXPECT_LT(sums.difference(), 1e-5);
        EXPECT_LT(c.difference(), 1e-5);
      }
    }
  }
}

TEST_F(CudaComputeTest, BiasBackward) {
  for (const auto& [rows, dtype] :
       {std::pair<std::int64_t, DType>{1, DType::f32}, {40, DType::f32}, {9000, DType::f32}, {40, DType::bf16}}) {
    const Shape shape{rows, rows == 9000 ? 3 : 130};
    for (const bool masked : {false, true}) {
      const Pair y = kept(dtype, shape), dy = kept(dtype, shape), dbias = floats({shape[1]});
      for (const bool add : {false, true}) {
        both([&](Compute& compute, auto of) {
          compute.bias_backward(masked ? of(y) : Tensor{}, of(dy), add, of(dbias));
        });
        EXPECT_LT(dbias.difference(), 1e-4);
        EXPECT_EQ(dy.difference(), 0);
      }
      both([&](Compute& compute, auto of) { compute.bias_backward(masked ? of(y) : Tensor{}, of(dy), false, {}); });
      EXPECT_EQ(dy.difference(), 0);
    }
  }
}

/// Few tokens, so that some are in many chunks, and many.
TEST_F(CudaComputeTest, EmbeddingForwardAndBack) {
  for (const std::int64_t count : {1, 7, 64, 65, 1024, 4100}) {
    const std::uint64_t known = count == 1024 ? 2 : 50;
    std::vector<std::int32_t> names;
    for (std::int64_t i = 0; i < count; ++i) names.push_back(static_cast<std::int32_t>(all->random().below(known)));
    const Pair tokens = integers(names), table = floats({50, 5}), x = floats({count, 5}), d = floats({count, 5});
    both([&](Compute& compute, auto of) {
      compute.embed(of(table), of(tokens), of(x));
      compute.embed_backward(of(tokens), of(d), of(table));
    });
    EXPECT_TRUE(x.same_bits());
    EXPECT_LT(table.difference(), 1e-6) << count;
  }
}

TEST_F(CudaComputeTest, RmsNormForwardAndBack) {
  for (const DType dtype : all_items) {
    for (const Shape& shape : {Shape{3, 7}, Shape{50, 130}, Shape{50, 1032}}) {
      const std::int64_t rows = shape[0], dim = shape[1];
      const Pair x = floats(shape), more = floats(shape), sum = floats(shape), gain = floats({dim}),
                 h = items(dtype, shape);
      const Pair inverse = floats({rows}), dh = floats(shape), d = floats(shape), d_gain = floats({dim});
      const Pair d_items = items(dtype, shape);
      both([&](Compute& compute, auto of) {
        compute.rms_norm(of(x), {}, {}, of(gain), 1e-5, of(h), of(inverse));
        compute.rms_norm_backward(of(x), of(gain), of(inverse), of(dh), of(d), of(d_gain), {});
        compute.rms_norm(of(x), of(more), of(sum), of(gain), 1e-5, of(h), of(inverse));
        compute.rms_norm_backward(of(sum), of(gain), of(inverse), of(dh), of(d), of(d_gain), of(d_items));
      });
      EXPECT_TRUE(sum.same_bits());
      for (const Pair* one : {&inverse, &d, &d_gain}) EXPECT_LT(one->difference(), 3e-6);
      for (const Pair* one : {&h, &d_items}) EXPECT_LT(one->difference(), tolerance(dtype));
    }
  }
}

TEST_F(CudaComputeTest, AttentionForwardAndBack) {
  struct Case {
    Heads heads;
    std::int64_t sequences, positions;
    DType dtype;
    std::size_t passes = 0;  // of a library, forward and back
  };
  for (const auto& [heads, sequences, positions, dtype, passes] :
       {Case{{4, 2, 8}, 2, 131, DType::f32}, Case{{3, 3, 40}, 1, 64, DType::bf16}, Case{{2, 1, 8}, 1, 131, DType::bf16},
        Case{{2, 1, 128}, 1, 70, DType::f32}, Case{{2, 1, 128}, 1, 70, DType::bf16},
        Case{{1, 1, 40}, 1, 66, DType::f32}, Case{{1, 1, 2}, 3, 1, DType::f16},
        // A library's passes back are of two sequences each, of one, and of the only one.
        Case{{4, 2, 16}, 4, 128, DType::bf16, 3}, Case{{8, 2, 16}, 3, 128, DType::bf16, 4},
        Case{{2, 1, 128}, 1, 256, DType::bf16, 2}}) {
    host_devices().library = passes > 0;
    const Shape rows{sequences, positions, heads.row()};
    const Shape of_q{sequences, heads.heads, positions, heads.width()};
    const Shape of_k{sequences, heads.kv_heads, positions, heads.width()};
    const Shape of_out{sequences * positions, heads.heads * heads.head_dim};
    const Pair qkv = kept(dtype, rows), q = kept(dtype, of_q), k = kept(dtype, of_k), v = kept(dtype, of_k);
    const Pair log_sums = floats({sequences, heads.heads, positions}), d_out = kept(dtype, of_out);
    const Pair out = items(dtype, of_out), d_qkv = items(dtype, rows);

    std::vector<float> cosines, sines;
    for (std::int64_t i = 0; i < (positions + 3) * heads.head_dim / 2; ++i) {
      cosines.push_back(std::cos(static_cast<float>(i)));
      sines.push_back(std::sin(static_cast<float>(i)));
    }
    const Shape of_table{positions + 3, heads.head_dim / 2};
    const Pair cosine = floats(of_table, cosines), sine = floats(of_table, sines);
    both([&](Compute& compute, auto of) {
      const RotationTables rotations{of(cosine), of(sine)};
      const HeadTensors tensors{of(q), of(k), of(v)};
      compute.split_heads(heads, rotations, of(qkv), tensors);
      compute.attend(heads, tensors, of(out), of(log_sums));
      compute.attend_backward(heads, rotations, tensors, of(out), of(log_sums), of(d_out), of(d_qkv));
    });
    for (const Pair* one : {&q, &k, &v}) EXPECT_LT(one->difference(), dtype == DType::bf16 ? tolerance(dtype) : 3e-6);
    // In bf16 it is tensor cores that multiply, of rounded numbers.
    EXPECT_LT(log_sums.difference(), dtype == DType::bf16 ? tolerance(dtype) : 3e-6);
    EXPECT_LT(out.difference(), tolerance(dtype));
    EXPECT_LT(d_qkv.difference(), 3 * tolerance(dtype)) << heads.head_dim;
    EXPECT_EQ(std::exchange(host_devices().attentions, 0), host_devices().launches > 0 ? passes : 0);
  }
}

TEST_F(CudaComputeTest, HeadsThatAreTooWideAreAnError) {
  const Heads heads{1, 1, 144};
  const Pair q = floats({1, 1, 1, 144}), out = floats({1, 144}), log_sums = floats({1, 1, 1});
  EXPECT_EQ(testing::error_of([&] {
              const Tensor& rows = q.of(*gpu);
              gpu->attend(heads, {rows, rows, rows}, out.of(*gpu), log_sums.of(*gpu));
            }),
            "attention on a GPU takes heads of at most 128 numbers; give the model more heads, or narrower ones");
}

TEST_F(CudaComputeTest, SwigluForwardAndBack) {
  for (const DType dtype : all_items) {
    for (const std::int64_t width : {45, 48}) {
      const Pair gate_up = kept(dtype, {31, 2 * width}), s = items(dtype, {31, width}), ds = kept(dtype, {31, width});
      const Pair d = items(dtype, {31, 2 * width});
      both([&](Compute& compute, auto of) {
        compute.swiglu(of(gate_up), of(s));
        const bool in_place = dtype == DType::f32;
        compute.swiglu_backward(of(gate_up), of(ds), in_place ? of(gate_up) : of(d), in_place ? of(ds) : of(s));
      });
      for (const Pair* one : {&s, &d, &gate_up, &ds}) EXPECT_LT(one->difference(), tolerance(dtype));
    }
  }
}

TEST_F(CudaComputeTest, CrossEntropy) {
  constexpr std::int64_t rows = 6, classes = 300;
  std::vector<float> values = numbers({rows, classes});
  values[classes + 7] = values[classes + 9] = 5;  // of equal ones the first counts
  values[2 * classes] = 1e30f;
  values[3 * classes + 4] = 95;
  values[5 * classes + 1] = NAN;
  const Pair targets = integers({3, 9, 1, 4, -1, 2}), logits = floats({rows, classes}, values);
  const Pair d = floats({rows, classes}), sums = doubles(3, 0.5), no_targets = integers({});
  both([&](Compute& compute, auto of) { compute.cross_entropy(of(logits), of(targets), 2, of(d), of(sums)); });
  EXPECT_LT(d.difference(), 3e-6);
  EXPECT_LT(sums.difference(), 1e-6);  // with a NaN
  const Pair finite = doubles(3, 0), few = integers({3, 7, 1, 4, -1});
  both([&](Compute& compute, auto of) {
    const Tensor some = part_of(of(logits), 0, {5, classes});
    compute.cross_entropy(some, of(few), 2, {}, of(finite));
    compute.cross_entropy(some, of(few), 2, some, of(finite));
  });
  EXPECT_LT(finite.difference(), 1e-6);
  EXPECT_EQ(static_cast<const double*>(finite.host().data)[1], 4);
  EXPECT_LT(logits.difference(), 3e-6);
}

/// Logits of 16 bits, and their gradient in place.
TEST_F(CudaComputeTest, CrossEntropyOfWhatIsKept) {
  for (const std::int64_t classes : {70, 9000}) {
    const Pair logits = kept(DType::bf16, {3, classes}), sums = doubles(3, 0);
    const Pair targets = integers({static_cast<std::int32_t>(classes - 1), -1, 5});
    both([&](Compute& compute, auto of) { compute.cross_entropy(of(logits), of(targets), 2, of(logits), of(sums)); });
    EXPECT_LT(sums.difference(), 1e-6);
    EXPECT_LT(logits.difference(), tolerance(DType::bf16));
  }
}

TEST_F(CudaComputeTest, StagesOfAnyStrideAndPadding) {
  struct Case {
    std::int64_t channels, filters, kernel;
    Convolution how;
    Pooling pooling;
    DType dtype = DType::f32;
  };
  for (const auto& [channels, filters, kernel, how, pooling, dtype] :
       {Case{1, 5, 3, {}, {}}, Case{3, 6, 3, {.padding = 1}, {.window = 2}},
        Case{3, 6, 3, {.padding = 1}, {.window = 2}, DType::bf16},
        Case{2, 70, 5, {.stride = 2, .padding = 2}, {.window = 3, .stride = 2, .padding = 1}},
        Case{16, 2, 1, {}, {.window = 2, .stride = 3}}, Case{4, 8, 2, {.stride = 3}, {.window = 3, .stride = 1}}}) {
    const Shape of_x{2, channels, 13, 17}, of_w{filters, channels, kernel, kernel};
    const Pair x = kept(dtype, of_x), w = floats(of_w), bias = floats({filters}), scale = floats({filters});
    const Pair shift = floats({filters}), slope = floats({filters}), offset = floats({filters});
    const Pair dw = floats(of_w), dbias = floats({filters}), dx = kept(dtype, of_x);
    for (const bool norm : {false, true}) {
      const auto stage = [&](auto of) {
        ImageStage all{.convolution = how,
                       .filters = of(w),
                       .bias = of(bias),
                       .activation = norm ? Activation::relu : Activation::none,
                       .pooling = pooling};
        if (norm) {
          all.scale = of(scale);
          all.shift = of(shift);
        }
        return all;
      };
      const auto host = [&](const Pair& one) { return one.host(); };
      const Shape of_y = stage(host).output(of_x);
      const Pair y = kept(dtype, of_y), d = kept(dtype, of_y), here = choices(cpu->choices(stage(host), of_x));
      const Pair there = choices(gpu->choices(stage(host), of_x));
      for (const bool add : {false, true}) {
        both([&](Compute& compute, auto of) {
          const Tensor& chosen = of(&compute == gpu ? there : here);
          ImageStage one = stage(of);
          compute.convolve(one, of(x), of(y), chosen);
          if (norm) {
            one.slope = of(slope);
            one.offset = of(offset);
          }
          compute.convolve_backward(one, of(x), chosen, of(d), add, of(dw), add ? Tensor{} : of(dbias), of(dx));
        });
        for (const Pair* one : {&y, &dw, &dbias, &dx}) {
          const bool rounded = dtype != DType::f32 && (one == &y || one == &dx);
          EXPECT_LT(one->difference(), rounded ? tolerance(dtype) : 1e-5) << filters << norm;
        }
      }
    }
  }
}

/// A number that is none must reach the loss, wherever in a window it is.
TEST_F(CudaComputeTest, PoolingKeepsNaN) {
  const Pooling how{.window = 2};
  for (std::size_t place = 0; place < 4; ++place) {
    std::vector<float> values{1, 2, 3, 4};
    values[place] = NAN;
    const Pair x = floats({1, 1, 2, 2}, values), y = floats({1, 1, 1, 1}), dx = floats({1, 1, 2, 2});
    const Pair d = floats({1, 1, 1, 1}, {5}), chosen = choices({1, 1, 1, 1});
    gpu->pool(how, x.of(*gpu), y.of(*gpu), chosen.of(*gpu));
    gpu->pool_backward(how, chosen.of(*gpu), d.of(*gpu), dx.of(*gpu));
    EXPECT_TRUE(std::isnan(y.numbers()[0])) << place;
    EXPECT_EQ(dx.numbers()[place], 5);
  }
}

TEST_F(CudaComputeTest, BatchNorm) {
  constexpr std::int64_t channels = 5;
  struct Case {
    std::int64_t examples;
    std::optional<DType> keeps;
  };
  for (const auto& [examples, keeps] : {Case{3, {}}, Case{3, DType::f32}, Case{3, DType::bf16}, Case{0, {}}}) {
    const double most = keeps == DType::bf16 ? tolerance(DType::bf16) : 1e-5;
    const Shape of_x{examples, 2, 7, 9}, of_w{channels, 2, 3, 3};
    const Pair x = floats(of_x), w = floats(of_w), gain = floats({channels}), bias = floats({channels});
    const Pair running_mean = floats({channels}), running_variance = floats({channels}, {1, 2, 3, 4, 5});
    const Pair sums = doubles(channels + 1), squares = doubles(channels), own = doubles(2 * channels + 1);
    const Pair mean = floats({channels}), inverse = doubles(channels), products = doubles(2 * channels);
    const Pair scale = floats({channels}), shift = floats({channels}), slope = floats({channels});
    const Pair offset = floats({channels}), d_gain = floats({channels}), d_bias = floats({channels});
    ImageStage shaped{.filters = w.host(), .activation = Activation::relu, .pooling = {.window = 2}};
    const Shape of_y = shaped.output(of_x);
    const Pair y = floats(of_y), d = floats(of_y), here = choices(cpu->choices(shaped, {3, 2, 7, 9}));
    const Pair there = choices(gpu->choices(shaped, {3, 2, 7, 9}));
    both([&, examples = examples, keeps = keeps](Compute& compute, auto of) {
      Buffer outputs;
      const Tensor& chosen = of(&compute == gpu ? there : here);
      ImageStage stage = shaped;
      stage.filters = of(w);
      if (keeps)
        stage.convolved = outputs.make(compute, compute.kept(*keeps), compute.convolved(stage, of_x), "a test");
      const BatchStatistics statistics{of(sums), of(squares), of(own), of(mean), of(inverse), of(products)};
      compute.batch_sums(stage, of(x), statistics);
      compute.batch_squares(statistics);
      compute.batch_fold(true, 1e-5, statistics, {of(gain), of(bias), of(running_mean), of(running_variance)},
                         of(scale), of(shift));
      if (examples == 0) return;
      stage.scale = of(scale);
      stage.shift = of(shift);
      compute.convolve(stage, of(x), of(y), chosen);
      compute.batch_products(stage, of(x), chosen, of(d), statistics, false, of(d_gain), of(d_bias));
      compute.batch_products(stage, of(x), chosen, of(d), statistics, true, of(d_gain), of(d_bias));
      compute.batch_fold_backward(statistics, of(gain), of(slope), of(offset));
    });
    for (const Pair* one : {&sums, &squares, &own, &mean, &inverse, &products, &scale, &shift, &slope, &offset, &d_gain,
                            &d_bias, &running_mean, &running_variance, &y}) {
      EXPECT_LT(one->difference(), most) << one - &sums << " of " << examples;
    }
    both([&](Compute& compute, auto of) {
      const BatchStatistics statistics{of(sums), of(squares), of(own), of(mean), of(inverse), of(products)};
      compute.batch_fold(false, 1e-5, statistics, {of(gain), of(bias), of(running_mean), of(running_variance)},
                         of(scale), of(shift));
    });
    for (const Pair* one : {&scale, &shift}) EXPECT_LT(one->difference(), most);
  }
}

TEST_F(CudaComputeTest, ClipsAndSkips) {
  const Pair scale = floats({2}), value = floats({9}), gradient = floats({9}), velocity = floats({9});
  const auto update = [&](Compute& compute, const smoke::Of& of) {
    const std::array tensors{UpdatedTensor{of(value), of(gradient), of(velocity)}};
    compute.sgd({.lr = 1, .momentum = 0.5f, .gradient_scale = of(scale)}, tensors, {});
  };
  for (const double squares : {0.0, 1e-4, 7.0}) {
    const Pair sums = doubles(300, squares);
    both([&](Compute& compute, auto of) {
      compute.clip(0.5, 2, of(sums), of(scale));
      update(compute, of);
    });
    EXPECT_LT(scale.difference(), 1e-6);
    EXPECT_EQ(scale.numbers()[0] < 0.5, squares == 7);
    EXPECT_EQ(scale.numbers()[1], 1);
  }
  const std::vector<double> before = value.numbers();
  for (const double squares : {static_cast<double>(NAN), static_cast<double>(INFINITY)}) {
    const Pair sums = doubles(3, squares);
    both([&](Compute& compute, auto of) {
      compute.clip(0.5, 2, of(sums), of(scale));
      update(compute, of);
      compute.clip(1, INFINITY, of(sums), of(scale));
    });
    EXPECT_EQ(scale.numbers(), (std::vector<double>{0, 0}));
    EXPECT_EQ(value.numbers(), before) << "values as they were";
  }
}

/// Whatever is copied ahead, or read later, is what it was then; and pinned memory is used again.
TEST_F(CudaComputeTest, CopiesThatNobodyWaitsFor) {
  std::vector<std::vector<float>> sent;
  std::vector<Pair> targets;
  std::vector<std::unique_ptr<Reading>> readings;
  for (int i = 0; i < 30; ++i)
    targets.push_back(floats({i % 3 == 0 ? 300'000 : 5}, std::vector<float>(i % 3 == 0 ? 300'000 : 5, 7)));
  std::size_t held = 0;
  for (int turn = 0; turn < 3; ++turn) {
    for (Pair& target : targets) {
      sent.push_back(numbers(target.host().shape));
      std::vector<float> from = sent.back();
      gpu->copy({.data = from.data(), .shape = target.host().shape}, target.gpu());
      std::fill(from.begin(), from.end(), NAN);  // it may be used again
      readings.push_back(gpu->read_later(target.gpu()));
      if (readings.size() % 7 == 0) gpu->fill(target.gpu(), 1);
    }
    for (std::size_t i = 0; i < sent.size(); ++i) {
      EXPECT_EQ(std::memcmp(readings[i]->wait(), sent[i].data(), sent[i].size() * sizeof(float)), 0) << i;
    }
    readings.clear();
    sent.clear();
    if (turn == 1) held = host_devices().pinned;
  }
  EXPECT_EQ(host_devices().pinned, held);
}

/// More tensors than a launch takes, some of them empty, give the bits of the host.
TEST_F(CudaComputeTest, UpdatesOfManyTensors) {
  std::vector<std::unique_ptr<Pair>> pairs;
  constexpr int count = cuda::most_updated + 20;  // two launches
  for (int i = 0; i < 4 * count; ++i) {
    const Shape shape{i / 4 == 20 ? 9000 : i / 4 % 7};
    std::vector<float> values = numbers(shape);
    if (i % 4 == 3) {
      for (float& value : values) value = std::abs(value);  // Adam's squares
    }
    pairs.push_back(std::make_unique<Pair>(floats(shape, values)));
  }
  const Pair scale = floats({2}, {0.37f, 1}), squares = doubles(count), again = doubles(count);
  const auto all_same = [&] {
    bool same = true;
    for (const auto& one : pairs) same = same && one->same_bits();
    return same;
  };
  both([&](Compute& compute, auto of) {
    std::vector<UpdatedTensor> tensors;
    std::vector<Tensor> gradients;
    for (std::size_t i = 0; i < pairs.size(); i += 4) {
      tensors.push_back({of(*pairs[i]), of(*pairs[i + 1]), of(*pairs[i + 2]), of(*pairs[i + 3]), i % 8 == 0 ? 0.1 : 0});
      gradients.push_back(of(*pairs[i + 1]));
    }
    compute.sgd({.lr = 0.1f, .momentum = 0.9f, .gradient_scale = of(scale)}, tensors, of(squares));
    compute.sums_of_squares(gradients, of(again));
    for (const bool decoupled : {false, true}) {
      compute.adam({0.01, 0.9, 0.95, 1e-8, 3, decoupled, of(scale)}, tensors, {});
    }
  });
  EXPECT_TRUE(all_same());
  EXPECT_LT(squares.difference(), 1e-12);
  EXPECT_EQ(squares.read(), again.read());
}

/// Threads that read what others of the same run() write. So what is tested of orders can fail.
struct Racing : cuda::Rowwise<64> {
  int* sums = nullptr;

  template <class Team>
  void operator()(const Team& team, cuda::Index) const {
    team.run([&](int thread) { sums[thread] = thread > 0 ? sums[thread - 1] + 1 : 0; });
  }
};

TEST(HostTeam, AnotherOrderShowsARace) {
  std::array<int, 64> forward{}, back{};
  testing::run_grid(Racing{{.rows = 1}, forward.data()}, false);
  testing::run_grid(Racing{{.rows = 1}, back.data()}, true);
  EXPECT_NE(forward, back);
}

TEST(HostTeamDeathTest, WhoeverTouchesAGpusMemoryDies) {
  host_devices() = {};
  const auto compute = testing::has_gpu() ? make_compute({DeviceKind::cuda, 0}) : nullptr;
  if (compute == nullptr) GTEST_SKIP() << "no GPU";
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  Buffer memory;
  const Tensor number = memory.make(*compute, DType::f32, {1}, "a test");
  EXPECT_DEATH(static_cast<volatile float*>(number.data)[0] = 1, "");
}

}  // namespace
}  // namespace kolo::models
