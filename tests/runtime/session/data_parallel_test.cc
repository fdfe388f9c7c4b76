// Data-parallel training on tensors alone, ranks as threads: sums in any order, means of what was counted, 16-bit
// wires, shards; and what becomes of mistakes, mismatches and ranks that are lost.

#include <kolo/data_parallel.h>

#include <fmt/format.h>

#include <algorithm>
#include <latch>
#include <numeric>
#include <random>
#include <thread>

#include <kolo/float16.h>

#include "runtime/session/gradient_priorities.h"
#include "tests/support/environment.h"
#include "tests/support/thread_ranks.h"

namespace kolo {
namespace {

using testing::error_text;
using testing::run_ranks;
using testing::test_config;

/// Of two kinds of gradients, in buckets of 100 bytes or a little more, submitted in an order that is not that of their
/// indices: all that fill a bucket have the priority of the one among them that the next pass needs first.
TEST(GradientPriorities, FollowTheNextPassBucketByBucket) {
  const std::vector<std::size_t> order{5, 6, 3, 4, 2, 1, 0};
  const std::vector<GradientSize> gradients{{60}, {50}, {300, true}, {90}, {50, true}, {60, true}, {30}};
  EXPECT_EQ(gradient_priorities(order, gradients, 100), (std::vector{0, 0, -2, -4, -3, -3, -4}));
  EXPECT_EQ(gradient_priorities(order, gradients, 0), (std::vector{0, -1, -2, -4, -3, -6, -5})) << "each alone";
  EXPECT_EQ(gradient_priorities(order, gradients, 1000), (std::vector{0, 0, -2, 0, -2, -2, 0}));
  EXPECT_EQ(gradient_priorities({}, {}, 100), std::vector<int>());
}

struct Ranks {
  int size;
  const char* fake_nodes;
};
class DataParallelRanks : public ::testing::TestWithParam<Ranks> {
 protected:
  void run(const std::function<void(Session&)>& program) const {
    Config config = test_config();
    config.fake_nodes = GetParam().fake_nodes;
    config.fusion_bytes = 300;  // several buckets a step
    run_ranks(GetParam().size, program, config);
  }
};
INSTANTIATE_TEST_SUITE_P(Worlds, DataParallelRanks,
                         ::testing::Values(Ranks{1, ""}, Ranks{2, ""}, Ranks{3, ""}, Ranks{4, ""}, Ranks{2, "1,1"},
                                           Ranks{3, "2,1"}),
                         [](const auto& info) {
                           std::string nodes = info.param.fake_nodes;
                           std::ranges::replace(nodes, ',', '_');
                           return std::to_string(info.param.size) + (nodes.empty() ? "" : "_on_" + nodes);
                         });

/// Parameters of these sizes: all values and all gradients in one piece of memory each.
class Parameters {
 public:
  explicit Parameters(std::vector<std::int64_t> sizes, float value = 0) : sizes_(std::move(sizes)) {
    const auto all = static_cast<std::size_t>(std::reduce(sizes_.begin(), sizes_.end()));
    values.resize(all, value);
    gradients.resize(all);
  }
  std::vector<TrainedTensor> tensors() {
    std::vector<TrainedTensor> tensors;
    std::size_t first = 0;
    for (std::size_t i = 0; i < sizes_.size(); ++i) {
      const Shape shape{sizes_[i]};
      tensors.push_back({fmt::format("p{}", i), view(&values[first], shape), view(&gradients[first], shape)});
      first += static_cast<std::size_t>(sizes_[i]);
    }
    return tensors;
  }
  std::span<float> gradient(std::size_t i) { return part(gradients, i); }
  std::span<float> value(std::size_t i) { return part(values, i); }
  std::size_t count() const { return sizes_.size(); }

  std::vector<float> values, gradients;

 private:
  std::span<float> part(std::vector<float>& all, std::size_t i) {
    const auto first = std::reduce(sizes_.begin(), sizes_.begin() + static_cast<std::ptrdiff_t>(i));
    return std::span(all).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(sizes_[i]));
  }
  std::vector<std::int64_t> sizes_;
};

const std::vector<std::int64_t> some_sizes{70, 1, 33, 8, 100, 5};

std::vector<std::size_t> shuffled(std::size_t count, std::mt19937_64& random) {
  std::vector<std::size_t> order(count);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::shuffle(order, random);
  return order;
}

/// Element `k` of gradient `i` on a rank: small whole numbers, whose sums are exact in any order.
float number(int rank, std::size_t i, std::size_t k, int step) {
  return static_cast<float>((static_cast<std::size_t>(rank) + 1) * (i + 1) + k % 7 + static_cast<std::size_t>(step));
}

TEST_P(DataParallelRanks, SumsWhateverTheOrder) {
  for (const std::uint64_t seed : testing::seeds(5)) {
    for (const ReduceOp op : {ReduceOp::sum, ReduceOp::average}) {
      run([&](Session& session) {
        Parameters mine(some_sizes);
        DataParallel parallel(session, mine.tensors(), {.op = op});
        std::mt19937_64 random(seed * 100 + static_cast<std::uint64_t>(session.rank()));
        for (int step = 0; step < 4; ++step) {
          for (const std::size_t i : shuffled(mine.count(), random)) {
            for (std::size_t k = 0; k < mine.gradient(i).size(); ++k)
              mine.gradient(i)[k] = number(session.rank(), i, k, step);
            parallel.ready(i);
          }
          for (const std::size_t i : shuffled(mine.count() / 2, random)) parallel.wait(i);
          parallel.finish();
          EXPECT_EQ(parallel.counted(), session.size());
          EXPECT_EQ(parallel.gradient_scale(), op == ReduceOp::average ? 1 : 1.0 / session.size());
          for (std::size_t i = 0; i < mine.count(); ++i) {
            for (std::size_t k = 0; k < mine.gradient(i).size(); ++k) {
              float sum = 0;
              for (int rank = 0; rank < session.size(); ++rank) sum += number(rank, i, k, step);
              const float expected = op == ReduceOp::average ? sum / static_cast<float>(session.size()) : sum;
              ASSERT_EQ(mine.gradient(i)[k], expected) << "seed " << seed << ", tensor " << i << ", element " << k;
            }
          }
        }
        EXPECT_GT(parallel.wait_seconds(), 0);
      });
    }
  }
}

/// Values of any type, and those that are only broadcast.
TEST_P(DataParallelRanks, ValuesComeFromTheRoot) {
  run([](Session& session) {
    const int root = session.size() - 1;
    std::vector<double> wide(5, session.rank());
    std::vector<BFloat16> narrow(7, to_bfloat16(static_cast<float>(session.rank())));
    std::vector<float> gradient(7), buffer(3, static_cast<float>(session.rank()));
    DataParallel parallel(session,
                          {{"wide", view(wide)}, {"narrow", view(narrow), view(gradient)}, {"buffer", view(buffer)}});
    parallel.broadcast(root);
    EXPECT_EQ(wide, std::vector<double>(5, root));
    EXPECT_EQ(to_float(narrow[6]), static_cast<float>(root));
    EXPECT_EQ(buffer, std::vector<float>(3, static_cast<float>(root)));
    std::ranges::fill(gradient, 1.0f);
    parallel.finish();
    EXPECT_EQ(gradient, std::vector<float>(7, static_cast<float>(session.size()))) << "all others have none";
  });
}

/// Every rank counts another number; the mean divides by their sum, which none of them knew.
TEST_P(DataParallelRanks, MeansAreThoseOfWhatWasCounted) {
  for (const ReduceOp op : {ReduceOp::sum, ReduceOp::average}) {
    run([&](Session& session) {
      Parameters mine({10, 20});
      DataParallel parallel(session, mine.tensors(), {.op = op, .counts = true});
      for (int step = 1; step < 4; ++step) {
        // Each of this rank's targets has the gradient 3.
        const double count = session.rank() * step;
        std::ranges::fill(mine.gradients, static_cast<float>(3 * count));
        parallel.count(count);
        parallel.ready(1);
        const double scale = parallel.gradient_scale();
        parallel.finish();
        const double total = step * session.size() * (session.size() - 1) / 2.0;
        EXPECT_EQ(parallel.counted(), total);
        for (const float gradient : mine.gradients) EXPECT_NEAR(scale * gradient, total == 0 ? 0 : 3, 1e-5);
      }
    });
  }
}

/// Of the passes of a step only the last communicates, what has added up until then.
TEST_P(DataParallelRanks, SkippedPassesOnlyAddUp) {
  run([](Session& session) {
    Parameters mine(some_sizes);
    DataParallel parallel(session, mine.tensors());
    for (int step = 0; step < 3; ++step) {
      std::ranges::fill(mine.gradients, 0.0f);
      for (int pass = 0; pass < 4; ++pass) {
        const auto before = session.stats().tensors;
        parallel.skip_sync(pass < 3);
        for (std::size_t i = mine.count(); i-- > 0;) {
          for (float& gradient : mine.gradient(i)) gradient += 1;
          parallel.ready(i);
        }
        if (pass == 3) break;
        EXPECT_EQ(session.stats().tensors, before);
        EXPECT_TRUE(parallel.submitted().empty());
      }
      EXPECT_EQ(parallel.submitted().size(), mine.count());
      parallel.finish();
      EXPECT_EQ(mine.gradients, std::vector<float>(mine.gradients.size(), static_cast<float>(4 * session.size())));
    }
  });
}

/// A rank whose pass does not reach a parameter sends what is there, and nobody waits for it.
TEST_P(DataParallelRanks, WhatIsNotReadyAtTheEndTravelsAsItIs) {
  run([](Session& session) {
    Parameters mine(some_sizes);
    DataParallel parallel(session, mine.tensors());
    for (int step = 0; step < 3; ++step) {
      std::ranges::fill(mine.gradients, 0.0f);
      for (std::size_t i = 0; i < mine.count(); ++i) {
        if (i % 2 == 1 && session.rank() > 0) continue;
        std::ranges::fill(mine.gradient(i), 1.0f);
        parallel.ready(i);
      }
      parallel.finish();
      for (std::size_t i = 0; i < mine.count(); ++i)
        EXPECT_EQ(mine.gradient(i)[0], static_cast<float>(i % 2 == 1 ? 1 : session.size())) << i;
    }
  });
}

/// A reference that rounds as the documentation says: before the sum, which is taken in f32 in the order of the ranks,
/// and behind it.
template <class Half>
float through(const std::vector<float>& of_ranks, double divisor, Half (*round)(float)) {
  float sum = 0;
  for (const float value : of_ranks) sum += to_float(round(static_cast<float>(1 / divisor) * value));
  return to_float(round(sum));
}

TEST_P(DataParallelRanks, GradientsTravelIn16Bits) {
  for (const std::uint64_t seed : testing::seeds(3)) {
    for (const DType wire : {DType::bf16, DType::f16}) {
      for (const bool split : {false, true}) {
        run([&](Session& session) {
          Parameters mine(some_sizes);
          DataParallel parallel(session, mine.tensors(),
                                {.wire = wire, .counts = true, .shards_from = split ? 10U : 1000U});
          const double expected = 3 * session.size(), total = 2 * session.size();
          for (int step = 0; step < 3; ++step) {
            std::vector<std::vector<float>> all;
            for (int rank = 0; rank < session.size(); ++rank) {
              std::mt19937_64 random(seed * 1000 + static_cast<std::uint64_t>(100 * step + rank));
              std::normal_distribution<float> numbers(0, 100);
              auto& of_rank = all.emplace_back(mine.gradients.size());
              for (float& value : of_rank) value = numbers(random);
              of_rank[3] = 60000;  // a sum of these is out of f16's range; divided by the count it is not
            }
            mine.gradients = all[static_cast<std::size_t>(session.rank())];
            parallel.count(2, expected);
            parallel.finish();
            EXPECT_EQ(parallel.gradient_scale(), expected / total);
            std::size_t first = 0;
            for (std::size_t i = 0; i < mine.count(); ++i) {
              const TensorShard& shard = parallel.shards()[i];
              for (std::size_t k = first + shard.first; k < first + shard.first + shard.count; ++k) {
                std::vector<float> of_ranks;
                for (const auto& of_rank : all) of_ranks.push_back(of_rank[k]);
                const float want = wire == DType::bf16 ? through(of_ranks, expected, to_bfloat16)
                                                       : through(of_ranks, expected, to_float16);
                ASSERT_EQ(mine.gradients[k], want) << "seed " << seed << ", element " << k;
                ASSERT_TRUE(std::isfinite(want));
              }
              first += mine.gradient(i).size();
            }
          }
        });
      }
    }
  }
}

/// Gradient descent by hand, whole and in shards: the same bits, on every rank.
TEST_P(DataParallelRanks, ShardsGiveTheBitsOfWholeTensors) {
  run([](Session& session) {
    const std::vector<std::int64_t> sizes{7, 1000, 3, 251, 64};
    Parameters whole(sizes, 1), split(sizes, 1);
    DataParallel as_whole(session, whole.tensors(), {.prefix = "whole/"});
    DataParallel as_shards(session, split.tensors(), {.prefix = "split/", .shards_from = 64});
    const auto train = [&](Parameters& mine, DataParallel& parallel, int step) {
      parallel.use_all();
      for (std::size_t k = 0; k < mine.values.size(); ++k)
        mine.gradients[k] =
            mine.values[k] * static_cast<float>(session.rank() + 1) / static_cast<float>(step + k % 5 + 3);
      for (std::size_t i = mine.count(); i-- > 0;) parallel.ready(i);
      for (const std::size_t i : parallel.submitted()) {
        parallel.wait(i);
        const TensorShard& shard = parallel.shards()[i];
        for (std::size_t k = shard.first; k < shard.first + shard.count; ++k)
          mine.value(i)[k] -= 0.01f * mine.gradient(i)[k];
        parallel.updated(i);
      }
      parallel.finish();
    };
    for (int step = 0; step < 5; ++step) {
      train(whole, as_whole, step);
      train(split, as_shards, step);
    }
    for (std::size_t i = 0; i < sizes.size(); ++i) as_shards.use(i);
    EXPECT_EQ(whole.values, split.values);
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      const TensorShard& shard = as_shards.shards()[i];
      const bool shared = session.size() > 1 && sizes[i] >= 64;
      const RowRange rows = rows_of_rank(sizes[i], session.size(), session.rank());
      EXPECT_EQ(shard.split, shared);
      EXPECT_EQ(shard.count, static_cast<std::size_t>(shared ? rows.count() : sizes[i]));
      EXPECT_EQ(shard.first, static_cast<std::size_t>(shared ? rows.begin : 0));
    }
  });
}

/// Halves of the ranks train models of their own, under the same names; and all together another one meanwhile.
TEST_P(DataParallelRanks, GroupsAndPrefixesKeepTrainingsApart) {
  run([](Session& session) {
    const bool odd = session.rank() % 2 == 1;
    std::vector<int> ranks;
    for (int rank = odd ? 1 : 0; rank < session.size(); rank += 2) ranks.push_back(rank);
    const Group half = session.new_group(ranks);
    Parameters mine(some_sizes), ours(some_sizes);
    DataParallel of_half(session, mine.tensors(), {.group = half, .counts = true, .shards_from = 50});
    DataParallel of_all(session, ours.tensors(), {.prefix = "all/"});
    for (int step = 0; step < 3; ++step) {
      std::ranges::fill(mine.gradients, odd ? 2.0f : 1.0f);
      std::ranges::fill(ours.gradients, 1.0f);
      of_half.count(1);
      for (std::size_t i = 0; i < mine.count(); ++i) {
        of_all.ready(i);
        of_half.ready(mine.count() - 1 - i);
      }
      of_half.finish();
      of_all.finish();
      const auto members = static_cast<float>(ranks.size());
      EXPECT_EQ(of_half.counted(), ranks.size());
      EXPECT_EQ(mine.gradient(1)[0], members * (odd ? 2.0f : 1.0f));
      EXPECT_EQ(ours.gradients, std::vector<float>(ours.gradients.size(), static_cast<float>(session.size())));
    }
    const bool alone = ranks.size() == 1;
    EXPECT_EQ(of_half.shards()[4].split, !alone);
    EXPECT_FALSE(of_half.shards()[1].split);
  });
}

/// What is dropped in the middle of a step on every rank is withdrawn or over, and its names are free.
TEST_P(DataParallelRanks, OneThatEndsInTheMiddleOfAStepLeavesNothing) {
  run([](Session& session) {
    for (int round = 0; round < 3; ++round) {
      Parameters mine(some_sizes);
      DataParallel first(session, mine.tensors(), {.counts = true});
      first.count(1);
      for (std::size_t i = 0; i < 3; ++i) first.ready(i);
      DataParallel moved = std::move(first);
      if (round == 1) moved.finish();
      moved = DataParallel(session, {});
      session.barrier();  // else what a late rank drops would meet the next round of the others
    }
    Parameters mine(some_sizes);
    std::ranges::fill(mine.gradients, 1.0f);
    DataParallel parallel(session, mine.tensors());
    parallel.finish();
    EXPECT_EQ(mine.gradients, std::vector<float>(mine.gradients.size(), static_cast<float>(session.size())));
  });
}

// ---- mistakes of one rank's program --------------------------------------------------------------------------------

template <class Call>
std::string refusal(Call&& call) {
  return error_text(std::forward<Call>(call), ErrorCode::invalid_argument);
}

TEST(DataParallelMistakes, OfAStepAreRefusedAtOnce) {
  run_ranks(1, [](Session& session) {
    Parameters mine({4, 4});
    std::vector<float> buffer(3);
    auto tensors = mine.tensors();
    tensors.push_back({"buffer", view(buffer)});
    DataParallel parallel(session, tensors);
    EXPECT_EQ(refusal([&] { parallel.ready(3); }), "there is no tensor 3 (they go from 0 to 2)");
    EXPECT_EQ(refusal([&] { parallel.ready(2); }), "'buffer' has no gradient that could be ready");
    EXPECT_EQ(refusal([&] { parallel.wait(0); }),
              "wait() for the gradient of 'p0' before its ready(); call that first");
    EXPECT_EQ(refusal([&] { parallel.count(1); }),
              "a step counts without DataParallelOptions::counts; set it on every rank");
    parallel.ready(0);
    EXPECT_EQ(refusal([&] { parallel.ready(0); }),
              "the gradient of 'p0' was ready twice in one step; call finish() between steps");
    parallel.wait(0);
    parallel.wait(0);
    EXPECT_EQ(refusal([&] { parallel.ready(0); }),
              "the gradient of 'p0' was ready twice in one step; call finish() between steps");
    parallel.skip_sync(true);
    EXPECT_EQ(refusal([&] { parallel.finish(); }),
              "a step ends while its gradients are skipped; call skip_sync(false) before its last pass");
    parallel.skip_sync(false);
    parallel.finish();
    parallel.ready(0);
    parallel.finish();

    DataParallel counting(session, mine.tensors(), {.prefix = "counting/", .counts = true});
    EXPECT_EQ(refusal([&] { counting.ready(0); }),
              "the step's count is missing (DataParallelOptions::counts); call count() before ready()");
    EXPECT_EQ(refusal([&] { counting.counted(); }), "counted() before the step's first ready(); call that first");
    EXPECT_EQ(refusal([&] { counting.count(-1); }),
              "a step cannot count -1 of 0 (numbers from 0 on); say what this rank's share counts");
    EXPECT_EQ(refusal([&] { counting.count(std::nan(""), 3); }),
              "a step cannot count nan of 3 (numbers from 0 on); say what this rank's share counts");
    counting.count(2);
    counting.ready(0);
    EXPECT_EQ(refusal([&] { counting.count(2); }),
              "count() was called behind the step's first ready(); call it before");
    counting.finish();
    EXPECT_EQ(counting.counted(), 2);
  });
}

TEST(DataParallelMistakes, OfItsMakingAreRefused) {
  run_ranks(2, [](Session& session) {
    std::vector<float> four(4), five(5);
    std::vector<std::int32_t> whole(4);
    const auto make = [&](std::vector<TrainedTensor> tensors, const DataParallelOptions& options = {}) {
      return refusal([&] { DataParallel(session, std::move(tensors), options); });
    };
    const TrainedTensor good{"w", view(four), view(four)};
    EXPECT_EQ(make({good, good}), "two tensors are called 'w'; give each a name of its own");
    EXPECT_EQ(make({{"w", view(four), view(five)}}),
              "'w' cannot be trained (value and gradient have different numbers of elements); see TrainedTensor");
    EXPECT_EQ(make({{"w", view(four), view(whole)}}),
              "'w' cannot be trained (its gradient has no floats); see TrainedTensor");
    Tensor elsewhere = view(four);
    elsewhere.device = {DeviceKind::cuda, 0};
    EXPECT_EQ(make({{"w", view(four), elsewhere}}),
              "'w' cannot be trained (value and gradient are on different devices); see TrainedTensor");
    EXPECT_EQ(make({{"w", {four.data(), Shape{-4}}, view(four)}}),
              "'w' cannot be trained (a shape is not valid); see TrainedTensor");
    std::vector<double> wide(4);
    EXPECT_EQ(make({{"w", view(wide), view(wide)}}, {.wire = DType::bf16}),
              "'w' cannot be trained (gradients that travel in 16 bits are f32); see TrainedTensor");
    EXPECT_EQ(make({good}, {.wire = DType::f32}), "gradients cannot travel as f32; use bf16 or f16");
    EXPECT_EQ(make({good}, {.op = ReduceOp::max}), "gradients cannot be combined by max; use sum or average");
    for (const std::vector<std::size_t>& order : {std::vector<std::size_t>{0, 0}, std::vector<std::size_t>{1}}) {
      EXPECT_EQ(make({good}, {.order = order}),
                "the order of gradients has a number twice, or one that is no tensor's; list each tensor once");
    }
    const std::vector<int> first{0}, both{0, 1};
    const Group one = session.new_group(first), ordered = session.new_group(both, {.order = Order::program});
    if (session.rank() == 1) {
      EXPECT_EQ(make({good}, {.group = one}), "this rank is no member of the group; only members train in it");
    }
    EXPECT_EQ(make({good}, {.group = ordered}),
              "group of ranks 0, 1 matches operations by their order, and gradients need names; make a group "
              "without Order::program");
    EXPECT_EQ(make({{"x", view(four), view(four)}}, {.prefix = "kolo."}).substr(0, 22), "'kolo.value/x': names ");
    DataParallel(session, {}).finish();  // nothing to train is no mistake
  });
}

// ---- ranks that disagree, are late or lost -------------------------------------------------------------------------

/// The same error on every rank, once all else is over; the next step goes on.
TEST(DataParallelFails, AMismatchIsEverybodysErrorAndTheNextStepGoesOn) {
  run_ranks(3, [](Session& session) {
    Parameters mine({8, 16, 4}), other({8, 17, 4});
    Parameters& used = session.rank() == 1 ? other : mine;
    DataParallel parallel(session, used.tensors(), {.counts = true});
    for (int step = 0; step < 3; ++step) {
      std::ranges::fill(used.gradients, 1.0f);
      parallel.count(1);
      parallel.ready(2);
      const std::string text = error_text([&] { parallel.finish(); }, ErrorCode::mismatch);
      EXPECT_EQ(text.substr(0, text.find(':')), "all_reduce 'gradient/p1' in group world") << text;
      EXPECT_NE(text.find("ranks 0, 2: f32[16]; rank 1: f32[17]"), std::string::npos) << text;
      EXPECT_EQ(used.gradient(0)[0], 3) << "what fits is summed";
      EXPECT_EQ(used.gradient(2)[3], 3);
      EXPECT_EQ(parallel.counted(), 3);
    }
    const std::string text = error_text([&] { parallel.broadcast(); }, ErrorCode::mismatch);
    EXPECT_NE(text.find("broadcast 'value/p1'"), std::string::npos) << text;
    session.barrier();
  });
}

/// What gradients were divided by must have been equal.
TEST(DataParallelFails, DifferentExpectationsAreEverybodysError) {
  run_ranks(3, [](Session& session) {
    Parameters mine({8, 16});
    DataParallel parallel(session, mine.tensors(), {.wire = DType::bf16, .counts = true});
    parallel.count(1, 1000000 + (session.rank() == 2 ? 1 : 0));
    EXPECT_EQ(error_text([&] { parallel.finish(); }, ErrorCode::invalid_argument),
              "ranks expected different counts in this step (from 1000000 to 1000001), and gradients in 16 bits are "
              "divided by it; pass the same to count() on every rank");
    std::ranges::fill(mine.gradients, 8.0f);
    parallel.count(1, 4);
    parallel.finish();
    EXPECT_EQ(mine.gradient(1)[7], 6);
    EXPECT_EQ(parallel.gradient_scale(), 4.0 / 3);
  });
}

/// Where a rank does not come: the operation's time-out names it, in each function that waits.
TEST(DataParallelFails, ARankThatDoesNotComeIsNamed) {
  run_ranks(3, [](Session& session) {
    Parameters mine({100, 200});
    DataParallel parallel(session, mine.tensors(), {.counts = true, .shards_from = 150, .timeout_seconds = 0.2});
    const auto expect_named = [&](auto&& call, std::string_view operation) {
      if (session.rank() != 1) {
        const std::string text = error_text(call, ErrorCode::stalled);
        EXPECT_TRUE(text.starts_with(operation)) << text;
        EXPECT_TRUE(text.find("rank 1") != text.npos || text.find("ranks 1") != text.npos) << text;
      }
      session.barrier();
    };
    expect_named([&] { parallel.broadcast(); }, "broadcast 'value/p0'");
    if (session.rank() != 1) parallel.count(1);
    if (session.rank() != 1) parallel.ready(0);
    expect_named([&] { parallel.gradient_scale(); }, "all_reduce 'count'");
    expect_named([&] { parallel.wait(0); }, "all_reduce 'gradient/p0'");
    expect_named([&] { parallel.finish(); }, "reduce_scatter 'gradient/p1'");
    if (session.rank() != 1) parallel.updated(1);
    expect_named([&] { parallel.use(1); }, "all_gather 'shard/p1'");
    if (session.rank() != 1) parallel.updated(1);
    expect_named([&] { parallel.use_all(); }, "all_gather 'shard/p1'");
  });
}

/// Where a rank may be when its program fails.
enum class Moment { before_its_first, between_gradients, before_the_end, before_an_update };

class DataParallelLosses : public ::testing::TestWithParam<Moment> {};
INSTANTIATE_TEST_SUITE_P(Moments, DataParallelLosses,
                         ::testing::Values(Moment::before_its_first, Moment::between_gradients, Moment::before_the_end,
                                           Moment::before_an_update));

struct LostRank : std::runtime_error {
  LostRank() : std::runtime_error("the program of this rank failed") {}
};

TEST_P(DataParallelLosses, OthersLearnOfALostRank) {
  constexpr int ranks = 3, lost = 1;
  const auto program = [&](int rank, World& world) {
    const auto leave_at = [&](Moment moment) {
      if (rank == lost && GetParam() == moment) throw LostRank();
    };
    try {
      Parameters mine(some_sizes);
      Session session(std::move(world), test_config());
      DataParallel parallel(session, mine.tensors(), {.counts = true, .shards_from = 50});
      for (int step = 0; step < 3; ++step) {
        parallel.use_all();
        parallel.count(1);
        if (step == 2) leave_at(Moment::before_its_first);
        for (std::size_t i = 0; i < mine.count(); ++i) {
          parallel.ready(i);
          if (step == 2) leave_at(Moment::between_gradients);
        }
        if (step == 2) leave_at(Moment::before_the_end);
        parallel.finish();
        if (step == 2) leave_at(Moment::before_an_update);
        for (std::size_t i = 0; i < mine.count(); ++i) parallel.updated(i);
      }
      parallel.use_all();
      session.barrier();
      ADD_FAILURE() << "rank " << rank << " noticed nothing";
    } catch (const LostRank&) {
      EXPECT_EQ(rank, lost);
    } catch (const Error& error) {
      EXPECT_NE(rank, lost);
      EXPECT_EQ(error.code(), ErrorCode::aborted);
      EXPECT_EQ(std::string(error.what()),
                "group world: rank 1 left without finishing (an error ended its program); see what that rank printed");
    }
  };
  testing::run_worlds(ranks, program, test_config());
}

}  // namespace
}  // namespace kolo
