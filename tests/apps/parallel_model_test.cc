// The glue between a model and a session, ranks as threads.

#include "apps/parallel_model.h"

#include <kolo/op.h>

#include "models/cnn.h"
#include "models/data/dataset.h"
#include "models/optim/optimizer.h"
#include "models/optim/update.h"
#include "tests/models/models_testing.h"
#include "tests/support/thread_ranks.h"

namespace kolo::testing {
namespace {

class ParallelModelTest : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, ParallelModelTest, ::testing::Values(1, 2, 3, 4));

const models::Dataset& digits() {
  static const models::Dataset set = models::render_digits({.train = 10, .held_out = 0}).train;
  return set;
}

const std::vector<std::int64_t> sizes{784, 8, 6, 10};

/// A whole step.
StepResult step_of(ParallelModel& parallel, const StepWork& work, bool give_up, const ParallelModel::Summed& summed) {
  parallel.begin_step(work, give_up);
  return parallel.finish_step(summed);
}
StepResult step_of(ParallelModel& parallel, const models::Batch& batch, bool give_up,
                   const ParallelModel::Summed& summed) {
  return step_of(parallel, {.next = [&] { return batch; }}, give_up, summed);
}

TEST_P(ParallelModelTest, EverybodyStartsFromRankZero) {
  run_ranks(GetParam(), [](Session& session) {
    BoundMlp mine(sizes, static_cast<std::uint64_t>(session.rank()));
    ParallelModel(session, mine.model).broadcast_parameters();
    EXPECT_EQ(mine.values, BoundMlp(sizes, 0).values);
  });
}

/// Ten digits over the ranks, the last of which get fewer or none, give the gradients of ten digits on one rank.
TEST_P(ParallelModelTest, SumsUnevenSharesOfAStep) {
  BoundMlp alone(sizes);
  testing::ImageBatches loader(digits());
  const double loss = alone.model.forward_backward(loader.load({0, 10}), ignore_ready).loss_sum;

  run_ranks(GetParam(), [&](Session& session) {
    BoundMlp mine(sizes);
    testing::ImageBatches share(digits());
    ParallelModel parallel(session, mine.model);
    const std::int64_t first = std::min<std::int64_t>(10, session.rank() * 4);
    const std::int64_t last = session.rank() + 1 == session.size() ? 10 : std::min<std::int64_t>(10, first + 4);
    for (int repeat = 0; repeat < 3; ++repeat) {
      std::vector<std::size_t> summed;
      const StepResult result = step_of(parallel, share.load({first, last - first}), false,
                                        [&](std::size_t index) { summed.push_back(index); });
      EXPECT_NEAR(result.loss_sum, loss, 1e-5 * loss);
      EXPECT_FALSE(result.give_up);
      EXPECT_GE(parallel.wait_seconds(), 0);
      EXPECT_LT(relative_difference(mine.gradients, alone.gradients), 1e-5);
      EXPECT_EQ(summed, (std::vector<std::size_t>{5, 4, 3, 2, 1, 0})) << "bias first, then weight, last layer first";
    }
  });
}

/// Of the micro-batches of a step only the last communicates: as many tensors as for one batch.
TEST_P(ParallelModelTest, OnlyTheLastMicroBatchCommunicates) {
  run_ranks(GetParam(), [](Session& session) {
    BoundMlp mine(sizes);
    testing::ImageBatches loader(digits());
    const models::Batch batch = loader.load({0, 4});
    ParallelModel parallel(session, mine.model);
    const auto tensors_of_step = [&](std::int64_t micro_batches) {
      const auto before = session.stats().tensors;
      step_of(parallel, {.next = [&] { return batch; }, .micro_batches = micro_batches}, false, [](std::size_t) {});
      return session.stats().tensors - before;
    };
    const auto of_one = tensors_of_step(1);
    EXPECT_EQ(of_one, mine.model.parameters().size() + 2);  // the count and the totals
    EXPECT_EQ(tensors_of_step(5), of_one);
  });
}

/// A step of the small model takes several buckets.
Config with_small_buckets() {
  Config config = test_config();
  config.fusion_bytes = 200;
  return config;
}

/// Runs buckets of f32 on a world of one, and notes how many elements they have.
class NotingBackend final : public Backend {
 public:
  explicit NotingBackend(std::vector<std::int64_t>& elements) : elements_(elements) {}
  std::string_view name() const override { return "noting"; }
  bool supports(const Signature& signature) const override { return signature.dtype == DType::f32; }
  std::unique_ptr<Operation> start(const Bucket& bucket) override {
    struct Done final : Operation {
      bool step() override { return true; }
      bool needs_polling() const override { return false; }
    };
    elements_.push_back(bucket.elements());
    return std::make_unique<Done>();
  }
  std::unique_ptr<Backend> for_group(const GroupInfo&) override { return nullptr; }
  void abandon() noexcept override {}

 private:
  std::vector<std::int64_t>& elements_;
};

/// What is new is planned when the program waits for the first time: then all gradients are ready.
TEST(ParallelModelPriorities, OfGradientsThatAreReadyTheFirstLayersGoFirst) {
  std::vector<std::int64_t> elements;
  World world = solo_world(with_small_buckets());
  world.prefer(std::make_unique<NotingBackend>(elements));
  Session session(std::move(world), with_small_buckets());
  BoundMlp mine(sizes);
  testing::ImageBatches loader(digits());
  ParallelModel parallel(session, mine.model);
  step_of(parallel, loader.load({0, 2}), false, ignore_ready);
  EXPECT_EQ(elements, (std::vector<std::int64_t>{784 * 8 + 8, 8 * 6 + 6, 6 * 10 + 10}));
}

TEST_P(ParallelModelTest, PrioritiesLeaveBucketsAsTheyAre) {
  for (const bool shards : {false, true}) {
    run_ranks(
        GetParam(),
        [&](Session& session) {
          BoundMlp mine(sizes);
          testing::ImageBatches loader(digits());
          ParallelModel parallel(session, mine.model, {.shards_from = shards ? 50U : 10000U});
          for (int step = 0; step < 3; ++step) {
            const auto before = session.stats();
            step_of(parallel, loader.load({0, session.rank() == 0 ? 2 : 0}), false, ignore_ready);
            const bool split = shards && session.size() > 1;
            EXPECT_EQ(session.stats().buckets - before.buckets, split ? 6U : 5U)
                << "with count and totals, step " << step;
          }
        },
        with_small_buckets());
  }
}

TEST_P(ParallelModelTest, AnybodyMayGiveUp) {
  run_ranks(GetParam(), [](Session& session) {
    BoundMlp mine(sizes);
    testing::ImageBatches loader(digits());
    ParallelModel parallel(session, mine.model);
    const bool last_rank = session.rank() + 1 == session.size();
    EXPECT_FALSE(step_of(parallel, loader.load({0, 2}), false, ignore_ready).give_up);
    EXPECT_TRUE(step_of(parallel, loader.load({0, 2}), last_rank, ignore_ready).give_up);
  });
}

/// A few steps of training, whose optimizer remembers; parameters from `shards_from` elements on are shared out.
class Training {
 public:
  Training(Session& session, const ParallelSettings& settings, std::optional<double> clip)
      : session_(&session),
        mlp_(sizes),
        loader_(digits()),
        parallel_(session, mlp_.model, settings),
        adam_(mlp_.model.parameters(), {}, models::Decay::decoupled, parallel_.shards()),
        update_(adam_, mlp_.model.parameters(), clip, nullptr, parallel_.shards(),
                [this](std::size_t index) { parallel_.updated(index); }) {}

  void step() {
    constexpr double targets = 8;
    const RowRange mine = rows_of_rank(8, session_->size(), session_->rank());
    parallel_.begin_step({.next = [&] { return loader_.load({mine.begin, mine.count()}); }, .targets = targets}, false);
    update_.begin(0.01, parallel_.gradient_scale());
    EXPECT_EQ(parallel_.finish_step([&](std::size_t index) { update_.arrived(index); }).targets, targets);
    const auto sum_all = [this](const Tensor& numbers, const Tensor& sums) { parallel_.sum(numbers, sums); };
    models::GradientNorm sums = update_.finish(sum_all).norm;
    if (!sums.summed) sums.shard_squares = sum(sums.shard_squares);
    norm = sums.value();
    parallel_.complete_values();
  }

  const models::AlignedFloats& values() const { return mlp_.values; }

  /// What the optimizer remembers of these shards, one number after the other.
  std::vector<float> state(const std::vector<models::Shard>& shards) {
    std::vector<float> all;
    for (const models::OptimizerTensor& tensor : adam_.state()) {
      const models::Shard& shard = shards[tensor.parameter];
      const std::span<float> values = testing::floats_of(tensor.values);
      const auto part = values.subspan(values.size() == shard.count ? 0 : shard.first, shard.count);
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }
  const std::vector<models::Shard>& shards() const { return parallel_.shards(); }
  std::size_t state_elements() {
    std::size_t elements = 0;
    for (const models::OptimizerTensor& tensor : adam_.state()) elements += testing::floats_of(tensor.values).size();
    return elements;
  }

  double norm = 0;

 private:
  double sum(double value) {
    session_->all_reduce("sum", view_scalar(value));
    return value;
  }

  Session* session_;
  BoundMlp mlp_;
  testing::ImageBatches loader_;
  ParallelModel parallel_;
  models::Adam adam_;
  models::Update update_;
};

/// To share the optimizer's work out changes no bit, on no rank, but those of the norm's sum. Of the weights one has
/// fewer elements than are worth it, and the others cannot be cut into equal parts.
TEST_P(ParallelModelTest, ShardsGiveTheBitsOfWholeParameters) {
  for (const models::Precision wire : {models::Precision::f32, models::Precision::bf16}) {
    run_ranks(GetParam(), [&](Session& session) {
      Training whole(session, {.wire = wire}, std::nullopt),
          shards(session, {.shards_from = 50, .wire = wire}, std::nullopt);
      for (int step = 0; step < 4; ++step) {
        whole.step();
        shards.step();
        EXPECT_EQ(whole.values(), shards.values()) << "step " << step;
        EXPECT_NEAR(whole.norm, shards.norm, 1e-9 * whole.norm);
      }
      EXPECT_EQ(whole.state(shards.shards()), shards.state(shards.shards()));
      const auto part = static_cast<double>(shards.state_elements()) / static_cast<double>(whole.state_elements());
      EXPECT_NEAR(part, 1.0 / session.size(), 0.02) << "of the state";
    });
  }
}

/// A norm that clips must be that of all shards.
TEST_P(ParallelModelTest, ShardsAreClippedTogether) {
  run_ranks(GetParam(), [](Session& session) {
    Training whole(session, {}, 0.1), shards(session, {.shards_from = 1}, 0.1);
    for (int step = 0; step < 4; ++step) {
      whole.step();
      shards.step();
      EXPECT_GT(whole.norm, 0.1) << "nothing is clipped";
      EXPECT_NEAR(whole.norm, shards.norm, 1e-5 * whole.norm);
    }
    EXPECT_LT(relative_difference(shards.values(), whole.values()), 1e-5);
    const std::string bytes(reinterpret_cast<const char*>(shards.values().data()),
                            shards.values().size() * sizeof(float));
    EXPECT_TRUE(session.broadcast_object("values", bytes) == bytes) << "ranks differ";
  });
}

/// A model whose passes wait for the other ranks', on digits; rank 1's batches can be bad.
class WithNorm {
 public:
  explicit WithNorm(Session& session)
      : loader_(digits()),
        model_({.filters = 4, .dense = 5, .batch_norm = true}, models::Precision::f32,
               [&session](Tensor sums) { session.all_reduce("statistics", sums); }),
        values_(testing::size_of_values(model_)),
        gradients_(testing::size_of_gradients(model_)),
        parallel_((model_.bind(view(std::span(values_)), view(std::span(gradients_))), model_.initialise(1), session),
                  model_, {.reduces_in_passes = true}) {}

  StepResult step(const std::function<models::Batch(testing::ImageBatches&)>& make) {
    return step_of(parallel_, {.next = [&] { return make(loader_); }, .micro_batches = 2}, false, ignore_ready);
  }

 private:
  testing::ImageBatches loader_;
  models::Cnn model_;
  models::AlignedFloats values_, gradients_;
  ParallelModel parallel_;
};

models::Batch good_batch(testing::ImageBatches& loader) {
  return loader.load({0, 3});
}

TEST(ParallelModelErrors, ABatchThatIsMissingIsAgreedOnInTheMiddleOfPasses) {
  run_ranks(3, [](Session& session) {
    WithNorm mine(session);
    EXPECT_FALSE(mine.step(good_batch).give_up);
    const auto missing = [](testing::ImageBatches&) -> models::Batch { throw models::ModelError("unreadable"); };
    const StepResult result = session.rank() == 1 ? mine.step(missing) : mine.step(good_batch);
    EXPECT_TRUE(result.give_up);
    EXPECT_EQ(static_cast<bool>(result.problem), session.rank() == 1);
    session.barrier();  // and the session goes on
  });
}

/// Once others wait for it in a pass, a rank whose own pass fails can only leave; no one waits for ever.
TEST(ParallelModelErrors, APassThatFailsWhileOthersWaitInTheirsEndsAll) {
  const Config config = test_config();
  const auto program = [&](int rank, World& world) {
    const auto bad = [](testing::ImageBatches& loader) {
      models::Batch batch = loader.load({0, 3});
      batch.inputs = batch.inputs.first(7);
      return batch;
    };
    const auto train = [&](const auto& make) {
      Session session(std::move(world), config);
      WithNorm(session).step(make);
    };
    if (rank == 1) {
      EXPECT_THROW(train(bad), models::ModelError);
    } else {
      EXPECT_THROW(train(good_batch), Error);
    }
  };
  run_worlds(3, program, config);
}

/// A rank that throws in the middle of a step leaves; the others learn of it instead of waiting for it.
TEST(ParallelModelErrors, ARankThatThrowsEndsTheOthers) {
  const Config config = test_config();
  const auto program = [&](int rank, World& world) {
    BoundMlp mine(sizes);
    testing::ImageBatches loader(digits());
    const auto leave = [](std::size_t) { throw models::ModelError("out of a pass"); };
    const auto train = [&](bool leaves) {
      Session session(std::move(world), config);
      ParallelModel parallel(session, mine.model);
      for (int step = 0; step < 3; ++step) {
        step_of(parallel, loader.load({0, 2}), false,
                leaves && step == 1 ? ParallelModel::Summed(leave) : ignore_ready);
      }
    };
    if (rank == 1) {
      EXPECT_THROW(train(true), models::ModelError);
    } else {
      EXPECT_THROW(train(false), Error);
    }
  };
  run_worlds(3, program, config);
}

}  // namespace
}  // namespace kolo::testing
