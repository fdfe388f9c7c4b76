#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "models/cnn.h"
#include "models/layers/images.h"
#include "models/layers/layered_model.h"
#include "models/layers/linear.h"
#include "models/layers/sequences.h"
#include "models/llama/llama.h"
#include "tests/models/finite_differences.h"
#include "tests/models/llama/llama_testing.h"
#include "tests/models/models_testing.h"

namespace kolo::models {
namespace {

using testing::Bound;
using testing::error_of;
using testing::ignore_ready;
using testing::RandomExamples;
using testing::TokenBatch;

/// A model of any layers, which a function adds.
class AnyModel final : public LayeredModel {
 public:
  using Build = std::function<void(AnyModel&)>;

  AnyModel(const ModelInput& input, const Build& build, Precision precision = Precision::f32)
      : LayeredModel(input, precision) {
    build(*this);
  }
  using LayeredModel::add;
  using LayeredModel::end;
  using LayeredModel::list;
};

using Any = Bound<AnyModel>;

constexpr std::int64_t image_inputs = 2 * 9 * 11;

double image_difference(const AnyModel::Build& build, float h = 1e-3f) {
  Any bound(ModelInput{.image = {2, 9, 11}}, build);
  const RandomExamples examples(6, image_inputs, 3);
  return testing::worst_difference(bound.model, examples.batch(0, 6), h, [&](const Batch& batch) {
    return bound.model.forward_backward(batch, ignore_ready).loss_sum;  // a norm's statistics are the batch's own
  });
}

double token_difference(const AnyModel::Build& build) {
  Any bound(ModelInput{.positions = 40}, build);
  Random random(4);
  for (float& value : bound.values) value = 0.3f * random.normal();
  const TokenBatch tokens(2, 40, 11);
  return testing::worst_difference(bound.model, tokens.batch(), 2e-3f,
                                   [&](const Batch& batch) { return bound.model.evaluate(batch).loss_sum; });
}

// Central differences of a loss in single precision. Every layer has parameters below it: their gradients are right
// only if that of its input is.

TEST(Layers, LinearAgainstFiniteDifferences) {
  EXPECT_LT(image_difference([](AnyModel& model) {
              model.add<Linear>("a", image_inputs, 13, Activation::relu);
              model.add<Linear>("b", 13, 7);
              model.add<Linear>("c", 7, 3);
              model.end<CrossEntropy>(3);
            }),
            1e-2);
}

/// Places of what these options make of an image of 9 x 11.
std::int64_t places_behind(const Conv2dOptions& options) {
  const auto extent = [&](std::int64_t size) {
    return extent_behind(extent_behind(size, options.kernel, options.stride, options.padding), options.pooling.window,
                         options.pooling.step(), options.pooling.padding);
  };
  return extent(9) * extent(11);
}

TEST(Layers, ConvolutionsAgainstFiniteDifferences) {
  for (const Conv2dOptions& second :
       {Conv2dOptions{.activation = Activation::relu},
        {.kernel = 2, .stride = 2, .padding = 1},
        {.kernel = 5, .padding = 2},
        {.padding = 1, .bias = false, .activation = Activation::relu, .pooling = {.window = 2}},
        {.kernel = 2, .pooling = {.window = 3, .stride = 2, .padding = 1}},
        {.kernel = 1, .stride = 2, .activation = Activation::relu, .pooling = {.window = 2, .stride = 1}}}) {
    EXPECT_LT(image_difference(
                  [&](AnyModel& model) {
                    model.add<Conv2d>("a", 2, 8, Conv2dOptions{.padding = 1, .activation = Activation::relu});
                    model.add<Conv2d>("b", 8, 6, second);
                    model.add<Linear>("c", 6 * places_behind(second), 3);
                    model.end<CrossEntropy>(3);
                  },
                  3e-4f),  // a larger step crosses kinks of ReLU and of pooling
              2e-2)
        << second.kernel << " " << second.pooling.window;
  }
}

TEST(Layers, NormedConvolutionsAgainstFiniteDifferences) {
  for (const Conv2dOptions& first :
       {Conv2dOptions{},
        {.activation = Activation::relu},
        {.activation = Activation::relu, .pooling = {.window = 2}},
        {.kernel = 2, .stride = 2, .padding = 1, .pooling = {.window = 3, .stride = 1, .padding = 1}}}) {
    EXPECT_LT(image_difference([&](AnyModel& model) {
                model.add<Conv2d>("a", 2, 5, Conv2dOptions{.padding = 1});
                model.add<NormedConv2d>("b", "norm", 5, 7, first);
                model.add<Linear>("c", 7 * places_behind(first), 3);
                model.end<CrossEntropy>(3);
              }),
              2e-2)
        << first.kernel << " " << first.pooling.window;
  }
}

TEST(Layers, PoolingAgainstFiniteDifferences) {
  for (const Pooling& how :
       {Pooling{.window = 2}, {.window = 3, .stride = 2, .padding = 1}, {.window = 2, .stride = 1}}) {
    const auto extent = [&](std::int64_t size) { return extent_behind(size, how.window, how.step(), how.padding); };
    EXPECT_LT(image_difference([&](AnyModel& model) {
                model.add<Conv2d>("a", 2, 3);
                model.add<MaxPool>(how);
                model.add<Linear>("b", 3 * extent(7) * extent(9), 3);
                model.end<CrossEntropy>(3);
              }),
              2e-2)
        << how.window;
  }
}

/// The layer and the stage are one operation.
TEST(Layers, PoolingBehindAConvolutionIsThatOfItsOptions) {
  const RandomExamples examples(6, image_inputs, 3);
  const auto model = [](bool apart) {
    return Any(ModelInput{.image = {2, 9, 11}}, [apart](AnyModel& model) {
      const Pooling pooling{.window = 3, .stride = 2, .padding = 1};
      model.add<Conv2d>("a", 2, 8,
                        Conv2dOptions{.activation = Activation::relu, .pooling = apart ? Pooling{} : pooling});
      if (apart) model.add<MaxPool>(pooling);
      model.add<Linear>("b", 8 * 4 * 5, 3);
      model.end<CrossEntropy>(3);
    });
  };
  Any one = model(false), other = model(true);
  EXPECT_EQ(one.model.forward_backward(examples.batch(0, 6), ignore_ready).loss_sum,
            other.model.forward_backward(examples.batch(0, 6), ignore_ready).loss_sum);
  EXPECT_LT(testing::relative_difference(one.gradients, other.gradients), 1e-6);
}

/// Numbers that would become denormal on their way forward and back take no longer than others.
TEST(Layers, DenormalsCostNoTime) {
  const std::int64_t width = 256;
  const RandomExamples examples(64, width, 3);
  Any bound(ModelInput{.image = {width}}, [width](AnyModel& model) {
    for (const char* name : {"a", "b", "c", "d"}) model.add<Linear>(name, width, width);
    model.add<Linear>("e", width, 3);
    model.end<CrossEntropy>(3);
  });
  const auto seconds = [&] {
    double least = 1e9;
    for (int pass = 0; pass < 30; ++pass) {
      const auto start = std::chrono::steady_clock::now();
      bound.model.forward_backward(examples.batch(0, 64), ignore_ready);
      least = std::min(least, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
    return least;
  };
  const double before = seconds();
  for (const Parameter& parameter : bound.model.parameters()) {
    const bool bias = parameter.name.ends_with("bias");
    for (float& value : testing::floats_of(parameter.value))
      value *= bias ? 0 : 1e-13f;  // three layers on they would be 1e-39
  }
  EXPECT_LT(seconds(), 3 * before);
}

/// What a model calls in the middle of a pass computes as it always does.
TEST(Layers, DenormalsCountForOtherCode) {
  const auto expect_denormals = [] {
    const volatile float tiny = 1e-30f, small = 1e-10f;
    EXPECT_GT(tiny * small, 0);
  };
  int sums = 0;
  Bound<Cnn> cnn(CnnSettings{.height = 8, .width = 8, .filters = 2, .dense = 3, .classes = 3, .batch_norm = true},
                 Precision::f32, [&](const Tensor&) {
                   ++sums;
                   expect_denormals();
                 });
  const RandomExamples examples(2, 64, 3);
  cnn.model.forward_backward(examples.batch(0, 2), [&](std::size_t) { expect_denormals(); });
  EXPECT_EQ(sums, 3);
  expect_denormals();
}

TEST(Layers, BadExtentsOfImagesAreErrors) {
  ParameterList none;
  EXPECT_EQ(
      error_of([&] { MaxPool(none, {.window = 3, .padding = 2}); }),
      "pooling cannot have a window of 3, a stride of 0 and a padding of 2; windows are 1 to 255, and the padding "
      "at most half of one");
  EXPECT_NE(error_of([&] { MaxPool(none, {.window = 256}); }), "no error");
  EXPECT_EQ(error_of([&] { Conv2d(none, "a", 1, 1, {.stride = 0}); }),
            "a convolution cannot have filters of 3 x 3, a stride of 0 and a padding of 0; give it positive ones");
  const auto pass = [](const Conv2dOptions& options) {
    const RandomExamples examples(1, image_inputs, 3);
    Any bound(ModelInput{.image = {2, 9, 11}}, [&](AnyModel& model) {
      model.add<Conv2d>("a", 2, 8, options);
      model.end<CrossEntropy>(3);
    });
    bound.model.evaluate(examples.batch(0, 1));
  };
  EXPECT_EQ(error_of([&] { pass({.kernel = 10}); }),
            "a filter of 10 x 10 does not fit into an image of 9 x 11; choose a smaller one");
  EXPECT_EQ(error_of([&] { pass({.pooling = {.window = 8}}); }),
            "a pooling window of 8 x 8 does not fit into an image of 7 x 9; choose a smaller one");
}

constexpr Heads odd_heads{.heads = 4, .kv_heads = 2, .head_dim = 6};

TEST(Layers, SequenceLayersAgainstFiniteDifferences) {
  const std::map<std::string, AnyModel::Build> kinds{
      {"embedding", [](AnyModel&) {}},
      {"norm", [](AnyModel& model) { model.add<RmsNorm>("x", 20); }},
      {"attention", [](AnyModel& model) { model.add<Attention>("x", 20, odd_heads, rotation_steps(6, 1e4)); }},
      {"two attentions",
       [](AnyModel& model) {
         model.add<Attention>("x", 20, odd_heads, rotation_steps(6, 1e4));
         model.add<Attention>("y", 20, odd_heads, rotation_steps(6, 1e4));
       }},
      {"attention of a product",
       [](AnyModel& model) {
         model.add<Linear>("w", 20, 12, Activation::relu);
         model.add<Attention>("x", 12, odd_heads, rotation_steps(6, 1e4));
         model.add<Linear>("y", 12, 20);
       }},
      {"gated", [](AnyModel& model) { model.add<SwiGlu>("x", 20, 13); }},
      {"residual", [](AnyModel& model) {
         for (const std::string name : {"x", "y"}) {
           auto inner = std::make_unique<Sequential>();
           inner->add(std::make_unique<Linear>(model.list(), name + ".up", 20, 33, Activation::relu));
           inner->add(std::make_unique<Linear>(model.list(), name + ".down", 33, 20));
           model.add(std::make_unique<Residual>(std::make_unique<RmsNorm>(model.list(), name + ".norm", 20),
                                                std::move(inner)));
         }
       }}};
  for (const auto& [name, build] : kinds) {
    EXPECT_LT(token_difference([&](AnyModel& model) {
                model.add<Embedding>("table", 11, 20);
                build(model);
                model.add<Linear>("top", 20, 11);
                model.end<CrossEntropy>(11);
              }),
              1e-2)
        << name;
  }
}

TEST(Layers, RecomputationGivesTheSameBits) {
  const auto build = [](bool repeats) {
    return [=](AnyModel& model) {
      model.add<Embedding>("table", 11, 20);
      std::shared_ptr<Recompute::Shared> shared;
      for (const std::string name : {"x", "y", "z"}) {
        auto layer = std::make_unique<Residual>(std::make_unique<RmsNorm>(model.list(), name + ".norm", 20),
                                                std::make_unique<SwiGlu>(model.list(), name, 20, 13));
        if (!repeats) {
          model.add(std::move(layer));
          continue;
        }
        if (!shared) shared = std::make_shared<Recompute::Shared>(layer->make_kept());
        model.add(std::make_unique<Recompute>(std::move(layer), shared));
      }
      model.add<Linear>("top", 20, 11);
      model.end<CrossEntropy>(11);
    };
  };
  const TokenBatch tokens(2, 40, 11);
  Any kept(ModelInput{.positions = 40}, build(false)), again(ModelInput{.positions = 40}, build(true));
  EXPECT_EQ(kept.model.forward_backward(tokens.batch(), ignore_ready).loss_sum,
            again.model.forward_backward(tokens.batch(), ignore_ready).loss_sum);
  EXPECT_EQ(kept.gradients, again.gradients);
}

TEST(Layers, WhatCannotBeIsAnError) {
  ParameterList list;
  EXPECT_EQ(error_of([&] {
              Residual(std::make_unique<RmsNorm>(list, "norm", 4),
                       std::make_unique<Linear>(list, "x", 4, 4, Activation::relu));
            }),
            "a residual layer cannot end in an activation (the gradient passes by it); put the activation before its "
            "last layer");
  const RandomExamples examples(2, image_inputs, 3);
  Any large(ModelInput{.image = {2, 9, 11}}, [](AnyModel& model) {
    model.add<Conv2d>("a", 2, 8, Conv2dOptions{.kernel = 10});
    model.end<CrossEntropy>(3);
  });
  EXPECT_EQ(error_of([&] { large.model.evaluate(examples.batch(0, 2)); }),
            "a filter of 10 x 10 does not fit into an image of 9 x 11; choose a smaller one");
  testing::BoundMlp mlp({4, 3});
  RandomExamples wrong(2, 4, 3);
  for (const std::int32_t target : {-2, 3}) {
    wrong.targets[1] = target;
    EXPECT_EQ(
        error_of([&] { mlp.model.forward_backward(wrong.batch(0, 2), ignore_ready); }),
        fmt::format("target {} is out of range (the model has 3 classes); check the labels and the sizes", target));
  }
}

/// Lends parameters only between the calls that ask for them and those that give them back: everything lies elsewhere
/// at other times, and what was lent is spoiled.
class Lender final : public ParameterStore {
 public:
  Lender(std::span<const Parameter> parameters, std::vector<float> values)
      : parameters_(parameters),
        values_(std::move(values)),
        gradients_(static_cast<std::size_t>(at(parameters.size(), true)), NAN) {}

  void begin_forward() override {}

  Tensor acquire(std::size_t first, std::size_t count, DType dtype) override {
    std::unique_ptr<Lent>& lent = lent_[{first, dtype}];
    if (!lent) {
      lent = std::make_unique<Lent>();
      lent->numbers.assign(values_.begin() + at(first), values_.begin() + at(first + count));
      lent->halves.resize(lent->numbers.size());
      if (dtype != DType::f32) {
        to_half(dtype == DType::bf16 ? Precision::bf16 : Precision::f16, lent->numbers, 1, lent->halves);
      }
    }
    ++lent->users;
    most_ = std::max(most_, ++lent_now_);
    Tensor tensor = view(lent->numbers);
    tensor.dtype = dtype;
    if (dtype != DType::f32) tensor.data = lent->halves.data();
    return tensor;
  }
  void release(std::size_t first, std::size_t) override {
    --lent_now_;
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      const auto found = lent_.find({first, dtype});
      if (found == lent_.end() || --found->second->users > 0) continue;
      if (dtype == DType::f32) {  // running statistics are written
        std::ranges::copy(found->second->numbers, values_.begin() + at(first));
      }
      std::ranges::fill(found->second->numbers, NAN);
      std::ranges::fill(found->second->halves, 0xffff);
      graveyard_.push_back(std::move(found->second));
      lent_.erase(found);
    }
  }
  Tensor gradients(std::size_t first, std::size_t count) override {
    for (std::size_t i = first; i < first + count; ++i) {
      EXPECT_FALSE(finished_[i]) << parameters_[i].name;
    }
    const std::int64_t begin = at(first, true);
    return view(
        std::span(gradients_)
            .subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(at(first + count, true) - begin)));
  }
  void finish(std::size_t index) override {
    EXPECT_FALSE(std::exchange(finished_[index], true)) << parameters_[index].name;
  }
  void begin_step() { finished_.clear(); }

  const std::vector<float>& values() const { return values_; }
  const std::vector<float>& gradients() const { return gradients_; }
  int lent_now() const { return lent_now_; }
  int most_lent() const { return most_; }

 private:
  struct Lent {
    std::vector<float> numbers;
    std::vector<std::uint16_t> halves;
    int users = 0;
  };

  /// Where a parameter begins among the values, or the gradients.
  std::ptrdiff_t at(std::size_t parameter, bool gradient = false) const {
    std::int64_t sum = 0;
    for (const Parameter& before : parameters_.first(parameter)) {
      if (before.trained || !gradient) sum += before.shape.elements();
    }
    return sum;
  }

  std::span<const Parameter> parameters_;
  std::vector<float> values_, gradients_;
  std::map<std::pair<std::size_t, DType>, std::unique_ptr<Lent>> lent_;
  std::vector<std::unique_ptr<Lent>> graveyard_;  // a layer that looks again finds what is spoiled
  std::map<std::size_t, bool> finished_;
  int lent_now_ = 0, most_ = 0;
};

/// Passes of two micro-batches, of a model that keeps all and of one that borrows its parameters.
template <class M>
void expect_same_from_a_lender(Bound<M>& keeps, Bound<M>& borrows, const Batch& one, const Batch& other) {
  Lender lender(borrows.model.parameters(), {keeps.values.begin(), keeps.values.end()});
  borrows.model.use(lender);
  std::ranges::fill(borrows.values, NAN);
  for (const bool add : {false, true}) {
    const Batch& batch = add ? other : one;
    const BatchResult expected = keeps.model.forward_backward(batch, ignore_ready, {.add = add});
    lender.begin_step();
    std::vector<std::size_t> order;
    const BatchResult result =
        borrows.model.forward_backward(batch, [&](std::size_t index) { order.push_back(index); }, {.add = add});
    EXPECT_EQ(result.loss_sum, expected.loss_sum);
    EXPECT_EQ(order, borrows.model.backward_order());
    EXPECT_EQ(lender.lent_now(), 0);
  }
  EXPECT_TRUE(std::ranges::equal(lender.gradients(), keeps.gradients));
  EXPECT_TRUE(std::ranges::equal(lender.values(), keeps.values));
  EXPECT_EQ(borrows.model.evaluate(one).loss_sum, keeps.model.evaluate(one).loss_sum);
  EXPECT_LE(lender.most_lent(), 4);  // a layer's, never all
}

CnnSettings small_cnn() {
  return {.channels = 2, .height = 9, .width = 11, .filters = 6, .dense = 7, .classes = 3, .batch_norm = true};
}

TEST(ParameterStore, LayersAskBeforeUseAndGiveBack) {
  const RandomExamples examples(9, image_inputs, 3);
  const TokenBatch one(2, 20, 256), other(1, 33, 256);
  for (const Precision precision : {Precision::f32, Precision::bf16}) {
    const std::vector<std::int64_t> sizes{image_inputs, 13, 3};
    Bound<Mlp> mlp(sizes, precision), borrowing_mlp(sizes, precision);
    expect_same_from_a_lender(mlp, borrowing_mlp, examples.batch(0, 5), examples.batch(5, 4));
    Bound<Cnn> cnn(small_cnn(), precision), borrowing_cnn(small_cnn(), precision);
    expect_same_from_a_lender(cnn, borrowing_cnn, examples.batch(0, 5), examples.batch(5, 4));
    for (const bool recompute : {false, true}) {
      LlamaSettings settings = llama_preset("tiny");
      settings.tied_head = recompute;
      Bound<Llama> llama(settings, precision, recompute), borrowing(settings, precision, recompute);
      expect_same_from_a_lender(llama, borrowing, one.batch(), other.batch());
    }
  }
}

/// Two micro-batches under way at once, as in a pipeline: forward, forward, back, back.
template <class M>
void expect_slots_apart(Bound<M>& bound, const Batch& one, const Batch& other) {
  const AlignedFloats before = bound.values;
  const double first = bound.model.forward_backward(one, ignore_ready).loss_sum;
  const double second = bound.model.forward_backward(other, ignore_ready, {.add = true}).loss_sum;
  const AlignedFloats expected = bound.gradients, values = bound.values;
  std::ranges::copy(before, bound.values.begin());
  std::ranges::fill(bound.gradients, NAN);
  const auto slot = bound.model.make_slot(), beside = bound.model.make_slot();
  bound.model.forward(one, *slot, Purpose::training);
  bound.model.forward(other, *beside, Purpose::training);
  bound.model.backward(*slot, ignore_ready, {});
  bound.model.backward(*beside, ignore_ready, {.add = true});
  EXPECT_EQ(bound.model.result(*beside).loss_sum, second);
  EXPECT_EQ(bound.model.result(*slot).loss_sum, first);
  EXPECT_EQ(bound.gradients, expected);
  EXPECT_EQ(bound.values, values);
}

TEST(Slots, HoldSeveralMicroBatches) {
  const RandomExamples examples(9, image_inputs, 3);
  const TokenBatch one(2, 20, 256), other(1, 33, 256);
  for (const Precision precision : {Precision::f32, Precision::f16}) {
    Bound<Mlp> mlp(std::vector<std::int64_t>{image_inputs, 13, 3}, precision);
    expect_slots_apart(mlp, examples.batch(0, 5), examples.batch(5, 4));
    expect_slots_apart(mlp, examples.batch(0, 5), examples.batch(5, 0));
    Bound<Cnn> cnn(small_cnn(), precision);
    expect_slots_apart(cnn, examples.batch(0, 5), examples.batch(5, 4));
    for (const bool recompute : {false, true}) {
      Bound<Llama> llama(llama_preset("tiny"), precision, recompute);
      expect_slots_apart(llama, one.batch(), other.batch());
      expect_slots_apart(llama, one.batch(), one.batch());
    }
  }
}

/// A micro-batch that is empty on all ranks leaves the running statistics as they are.
TEST(BatchNorm, NoExamplesMoveNoStatistics) {
  const RandomExamples examples(5, image_inputs, 3);
  Bound<Cnn> cnn(small_cnn());
  cnn.model.forward_backward(examples.batch(0, 5), ignore_ready);
  const AlignedFloats values = cnn.values, gradients = cnn.gradients;
  cnn.model.forward_backward(examples.batch(0, 0), ignore_ready, {.add = true});
  EXPECT_EQ(cnn.values, values);
  EXPECT_EQ(cnn.gradients, gradients);
  cnn.model.forward_backward(examples.batch(0, 0), ignore_ready);
  EXPECT_EQ(cnn.values, values);
  EXPECT_TRUE(std::ranges::all_of(cnn.gradients, [](float g) { return g == 0; }));
}

}  // namespace
}  // namespace kolo::models
