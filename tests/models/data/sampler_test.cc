#include "models/data/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "tests/models/models_testing.h"

namespace kolo::models {
namespace {

using testing::error_of;

/// What all ranks get in a step, in rank order.
std::vector<std::int64_t> global_step(std::vector<Sampler>& samplers, std::int64_t step) {
  std::vector<std::int64_t> all;
  std::int64_t global = -1;
  for (Sampler& sampler : samplers) {
    const StepShare share = sampler.at(step);
    if (global < 0) global = share.global_examples;
    EXPECT_EQ(share.global_examples, global);
    all.insert(all.end(), share.examples.begin(), share.examples.end());
  }
  EXPECT_EQ(static_cast<std::int64_t>(all.size()), global);
  EXPECT_GT(global, 0);
  return all;
}

std::vector<Sampler> samplers(SamplerSettings settings) {
  std::vector<Sampler> all;
  for (settings.rank = 0; settings.rank < settings.ranks; ++settings.rank) all.emplace_back(settings);
  return all;
}

std::vector<std::int64_t> whole_epoch(const SamplerSettings& settings, std::int64_t epoch) {
  std::vector<Sampler> all = samplers(settings);
  const std::int64_t steps = all[0].steps_per_epoch();
  std::vector<std::int64_t> examples;
  for (std::int64_t step = epoch * steps; step < (epoch + 1) * steps; ++step) {
    const StepShare share = all[0].at(step);
    EXPECT_EQ(share.epoch, epoch);
    EXPECT_EQ(share.last_of_epoch, step + 1 == (epoch + 1) * steps);
    const auto part = global_step(all, step);
    examples.insert(examples.end(), part.begin(), part.end());
  }
  return examples;
}

TEST(Sampler, EveryExampleOncePerEpochInAnOrderThatRanksAndBatchDoNotChange) {
  for (const std::int64_t count : {1, 2, 7, 10, 64, 100, 257}) {
    for (const Order order : {Order::shuffled, Order::sequential}) {
      for (std::int64_t epoch : {0, 1, 5}) {
        const auto expected = whole_epoch({.examples = count, .batch = 1, .seed = 3, .order = order}, epoch);
        std::vector<std::int64_t> sorted = expected, all(static_cast<std::size_t>(count));
        std::iota(all.begin(), all.end(), 0);
        std::ranges::sort(sorted);
        ASSERT_EQ(sorted, all);
        for (const int ranks : {1, 2, 3, 4, 7}) {
          for (const std::int64_t batch : {1, 3, 8, 64, 1000}) {
            ASSERT_EQ(
                whole_epoch({.examples = count, .batch = batch, .ranks = ranks, .seed = 3, .order = order}, epoch),
                expected)
                << count << " examples, " << ranks << " ranks, batch " << batch;
          }
        }
      }
    }
  }
}

TEST(Sampler, RankTakesItsBlockOfAGlobalStep) {
  auto all = samplers({.examples = 10, .batch = 2, .ranks = 3, .order = Order::sequential});
  EXPECT_EQ(all[0].steps_per_epoch(), 2);
  const auto share = [&](int rank, std::int64_t step) {
    const auto examples = all[static_cast<std::size_t>(rank)].at(step).examples;
    return std::vector(examples.begin(), examples.end());
  };
  using List = std::vector<std::int64_t>;
  EXPECT_EQ(share(0, 0), (List{0, 1}));
  EXPECT_EQ(share(1, 0), (List{2, 3}));
  EXPECT_EQ(share(2, 0), (List{4, 5}));
  EXPECT_EQ(share(0, 1), (List{6, 7}));  // the uneven last step: 4 examples are left
  EXPECT_EQ(share(1, 1), (List{8, 9}));
  EXPECT_EQ(share(2, 1), (List{}));
  EXPECT_EQ(all[2].at(1).global_examples, 4);
  EXPECT_EQ(share(0, 2), (List{0, 1}));
}

TEST(Sampler, MicroBatchesOfAStepFollowEachOther) {
  auto all = samplers({.examples = 21, .batch = 2, .ranks = 2, .accumulate = 2, .order = Order::sequential});
  const auto share = [&](std::size_t rank, std::int64_t step, std::int64_t micro) {
    const auto examples = all[rank].at(step, micro).examples;
    return std::vector(examples.begin(), examples.end());
  };
  using List = std::vector<std::int64_t>;
  EXPECT_EQ(all[0].steps_per_epoch(), 3);
  EXPECT_EQ(share(0, 0, 0), (List{0, 1}));
  EXPECT_EQ(share(1, 0, 0), (List{2, 3}));
  EXPECT_EQ(share(0, 0, 1), (List{4, 5}));
  EXPECT_EQ(share(1, 1, 1), (List{14, 15}));
  EXPECT_EQ(share(1, 2, 0), (List{18, 19}));
  EXPECT_EQ(share(0, 2, 1), (List{20}));
  EXPECT_EQ(share(1, 2, 1), (List{}));
  EXPECT_EQ(all[1].place(1).global_examples, 8);
  EXPECT_EQ(all[1].place(2).global_examples, 5);
  EXPECT_TRUE(all[1].place(2).last_of_epoch);
  EXPECT_EQ(all[1].place(3).epoch, 1);
}

TEST(Sampler, ShufflesDependOnSeedAndEpoch) {
  const SamplerSettings one{.examples = 100, .batch = 10, .seed = 1};
  SamplerSettings two = one;
  two.seed = 2;
  EXPECT_EQ(whole_epoch(one, 0), whole_epoch(one, 0));
  EXPECT_NE(whole_epoch(one, 0), whole_epoch(one, 1));
  EXPECT_NE(whole_epoch(one, 0), whole_epoch(two, 0));
}

TEST(Sampler, OrderIsTheSameEverywhere) {
  EXPECT_EQ(whole_epoch({.examples = 10, .batch = 10, .seed = 1}, 0),
            (std::vector<std::int64_t>{9, 6, 0, 8, 1, 3, 5, 7, 2, 4}));
}

TEST(Sampler, StartsAtAnyStep) {
  const SamplerSettings settings{.examples = 50, .batch = 4, .ranks = 2, .rank = 1, .seed = 9};
  Sampler straight(settings);
  std::vector<std::vector<std::int64_t>> steps;
  for (std::int64_t step = 0; step < 30; ++step) {
    const auto examples = straight.at(step).examples;
    steps.emplace_back(examples.begin(), examples.end());
  }
  for (const std::int64_t step : {29, 3, 17, 0, 6, 7}) {
    Sampler resumed(settings);
    EXPECT_TRUE(std::ranges::equal(resumed.at(step).examples, steps[static_cast<std::size_t>(step)])) << step;
    EXPECT_TRUE(std::ranges::equal(straight.at(step).examples, steps[static_cast<std::size_t>(step)])) << step;
  }
}

TEST(Sampler, HugeBatchesDoNotOverflow) {
  const std::int64_t huge = std::int64_t{1} << 62;
  Sampler sampler({.examples = 5, .batch = huge, .ranks = 1000, .rank = 999});
  EXPECT_EQ(sampler.steps_per_epoch(), 1);
  EXPECT_EQ(sampler.at(0).global_examples, 5);
  EXPECT_TRUE(sampler.at(0).examples.empty());
}

TEST(Sampler, BadSettingsAreErrors) {
  EXPECT_EQ(error_of([] { Sampler({.examples = 0, .batch = 1}); }),
            "there are no examples to train on; give a data set that has some");
  EXPECT_EQ(error_of([] { Sampler({.examples = 1, .batch = 0}); }), "the batch size is 0; give at least 1");
  EXPECT_EQ(error_of([] { Sampler({.examples = 1, .batch = -2}); }), "the batch size is -2; give at least 1");
  EXPECT_EQ(error_of([] { Sampler({.examples = 1, .batch = 1, .ranks = 2, .rank = 2}); }), "there is no rank 2 of 2");
  EXPECT_EQ(error_of([] { orders.parse("random"); }),
            "unknown order 'random' (known: shuffled, sequential); choose one of them");
  EXPECT_EQ(orders.parse("shuffled"), Order::shuffled);
  EXPECT_EQ(orders.parse("sequential"), Order::sequential);
}

TEST(EvenShare, CoversEverythingInOrder) {
  for (const std::int64_t count : {0, 1, 5, 100, 2000}) {
    for (const int ranks : {1, 2, 3, 7}) {
      std::int64_t next = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const Range share = even_share(count, ranks, rank);
        EXPECT_EQ(share.first, next);
        EXPECT_LE(share.count, count / ranks + 1);
        EXPECT_GE(share.count, count / ranks);
        next += share.count;
      }
      EXPECT_EQ(next, count);
    }
  }
}

/// 13 batches, of which the last has 4 examples.
TEST(EvaluationShare, SpreadsItsBatches) {
  const auto begins = [](std::int64_t most) {
    const EvaluationShare share{.range = {10, 100}, .batch = 8, .most = most};
    std::vector<std::int64_t> all;
    std::int64_t examples = 0;
    for (std::int64_t number = 0; number < share.batches(); ++number) {
      const Range those = share.at(number);
      all.push_back(those.first);
      examples += those.count;
      EXPECT_LE(those.first + those.count, 110);
    }
    EXPECT_EQ(examples, share.examples());
    return all;
  };
  EXPECT_EQ(begins(1), std::vector<std::int64_t>{10});
  EXPECT_EQ(begins(4), (std::vector<std::int64_t>{10, 10 + 3 * 8, 10 + 6 * 8, 10 + 9 * 8}));
  EXPECT_EQ(begins(100).size(), 13u);
  EXPECT_EQ(begins(100).back(), 10 + 12 * 8);
  const EvaluationShare none{.batch = 8, .most = 4};
  EXPECT_EQ(none.batches(), 0);
  EXPECT_EQ(none.examples(), 0);
}

TEST(Images, GathersAndConverts) {
  const Dataset data{.rows = 1, .columns = 2, .classes = 10, .inputs = {0, 255, 51, 102, 1, 2}, .labels = {7, 8, 9}};
  testing::ImageBatches loader(data);
  const std::vector<std::int64_t> examples{2, 0};
  const Batch batch = loader.gather(examples);
  EXPECT_EQ(batch.examples, 2);
  EXPECT_TRUE(std::ranges::equal(batch.inputs, std::vector<float>{1 / 255.0f, 2 / 255.0f, 0, 1}));
  EXPECT_TRUE(std::ranges::equal(batch.targets, std::vector<std::int32_t>{9, 7}));
  EXPECT_EQ(loader.gather({}).examples, 0);
  EXPECT_TRUE(std::ranges::equal(loader.load({1, 1}).inputs, std::vector<float>{0.2f, 0.4f}));
}

TEST(Evaluate, AddsUpBatches) {
  Dataset data{.rows = 1, .columns = 2, .classes = 3, .inputs = {}, .labels = {}};
  for (int i = 0; i < 600; ++i) {
    data.inputs.push_back(static_cast<std::uint8_t>(i));
    data.inputs.push_back(static_cast<std::uint8_t>(3 * i));
    data.labels.push_back(i % 3);
  }
  testing::BoundMlp mlp({2, 3});
  testing::ImageBatches loader(data);
  const BatchResult whole = mlp.model.evaluate(loader.load({0, 600}));
  const BatchResult parts = evaluate(mlp.model, Images(data), {.range = {0, 600}, .batch = 256});
  EXPECT_EQ(parts.correct, whole.correct);
  EXPECT_NEAR(parts.loss_sum, whole.loss_sum, 1e-4);
  double two = 0;
  for (const std::int64_t first : {0, 300}) two += mlp.model.evaluate(loader.load({first, 100})).loss_sum;
  std::int64_t seen = 0;
  const BatchResult some = evaluate(mlp.model, Images(data), {.range = {0, 600}, .batch = 100, .most = 2},
                                    [&](const Batch& batch) { return (seen += std::ssize(batch.targets)) > 0; });
  EXPECT_NEAR(some.loss_sum, two, 1e-6);
  EXPECT_EQ(some.targets, 200);
  EXPECT_EQ(seen, 200);
  EXPECT_EQ(evaluate(mlp.model, Images(data), {.range = {600, 0}, .batch = 256}).loss_sum, 0);
  std::int64_t begun = 0;
  const auto two_batches = [&](const Batch&) { return ++begun <= 2; };
  EXPECT_EQ(evaluate(mlp.model, Images(data), {.range = {0, 600}, .batch = 100}, two_batches).targets, 200);
}

}  // namespace
}  // namespace kolo::models
