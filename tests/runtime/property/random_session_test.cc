// Random programs, ranks as threads: every result against a serial model, every error the same on all ranks, nothing
// hangs. Replay a failure with KOLO_TEST_SEED=<seed>.

#include <kolo/session.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <mutex>
#include <numeric>
#include <set>
#include <thread>

#include "tests/runtime/property/random_program.h"
#include "tests/support/sanitized.h"
#include "tests/support/seeds.h"
#include "tests/support/thread_ranks.h"

namespace kolo {
namespace {

using testing::RandomOp;
using testing::RandomStep;
using testing::RandomSteps;
using testing::run_ranks;
using testing::Values;

/// The texts of errors by step and name: all ranks must have got the same one.
class AgreedErrors {
 public:
  void add(int step, const std::string& name, const std::string& text) {
    const std::lock_guard lock(mutex_);
    texts_[{step, name}].insert(text);
    ++counts_[{step, name}];
  }
  void check(int ranks, const std::vector<RandomStep>& steps) const {
    std::size_t expected = 0;
    for (std::size_t step = 0; step < steps.size(); ++step) {
      for (const RandomOp& op : steps[step].ops) {
        if (!op.fails()) continue;
        ++expected;
        const auto found = texts_.find({static_cast<int>(step), op.name});
        ASSERT_NE(found, texts_.end()) << op.name;
        EXPECT_EQ(found->second.size(), 1u)
            << op.name << ": " << *found->second.begin() << " | " << *found->second.rbegin();
        EXPECT_EQ(counts_.at(found->first), ranks);
      }
    }
    EXPECT_EQ(texts_.size(), expected) << "errors nobody planned";
  }

 private:
  std::mutex mutex_;
  std::map<std::pair<int, std::string>, std::set<std::string>> texts_;
  std::map<std::pair<int, std::string>, int> counts_;
};

/// One rank's way through the steps: its own order, delays, polls and early waits.
class Program {
 public:
  Program(Session& session, const std::vector<RandomStep>& steps, std::uint64_t seed, AgreedErrors& errors)
      : session_(session),
        steps_(steps),
        random_(seed * 16 + static_cast<std::uint64_t>(session.rank())),
        errors_(errors) {}

  void run() {
    for (step_ = 0; step_ < static_cast<int>(steps_.size()); ++step_) run_step(steps_[static_cast<std::size_t>(step_)]);
  }

 private:
  struct InFlight {
    const RandomOp* op;
    Values values;
    Handle handle{};
  };

  int draw(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }
  bool chance(int percent) { return draw(1, 100) <= percent; }
  bool troubled(const RandomOp& op) const { return op.troubled_rank == session_.rank(); }

  void run_step(const RandomStep& step) {
    std::vector<std::size_t> order(step.ops.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    if (!step.common_order) std::shuffle(order.begin(), order.end(), random_);
    std::vector<std::unique_ptr<InFlight>> open;
    Handle barrier;
    if (step.barrier) barrier = session_.barrier_async();
    for (std::size_t i : order) {
      delay();
      open.push_back(submit(step, step.ops[i]));
      if (chance(10)) (void)open[static_cast<std::size_t>(draw(0, static_cast<int>(open.size()) - 1))]->handle.poll();
      if (step.common_order && chance(10)) finish_one(open);
    }
    while (!open.empty()) finish_one(open);
    barrier.wait();
  }

  void delay() {
    if (chance(5)) std::this_thread::sleep_for(std::chrono::microseconds(draw(0, 200)));
    if (chance(10)) std::this_thread::yield();
  }

  std::unique_ptr<InFlight> submit(const RandomStep& step, const RandomOp& op) {
    if (op.trouble == RandomOp::Trouble::withdrawn) {
      if (troubled(op)) {
        auto first = std::make_unique<InFlight>(start(op));
        delay();
        first.reset();  // withdrawn, for the others have not submitted it; its memory is gone
        step.dropped->store(true);
        step.dropped->notify_all();
      } else {
        step.dropped->wait(false);
      }
    }
    return std::make_unique<InFlight>(start(op));
  }

  InFlight start(const RandomOp& op) {
    const bool odd = op.fails() && troubled(op);
    const bool other_dtype = odd && op.trouble == RandomOp::Trouble::other_dtype;
    const bool other_shape = odd && op.trouble == RandomOp::Trouble::other_shape;
    const DType dtype = other_dtype ? (op.dtype == DType::f64 ? DType::i32 : DType::f64) : op.dtype;
    InFlight result{&op, Values(dtype, op.elements + (other_shape ? 1 : 0))};
    result.values.fill(
        [&](std::int64_t i) { return testing::value_of(op, step_, session_.rank(), session_.size(), i); });
    Tensor tensor = result.values.tensor();
    if (odd && op.trouble == RandomOp::Trouble::null_pointer) tensor.data = nullptr;
    if (op.kind == OpKind::broadcast) {
      const bool other_root = odd && op.trouble == RandomOp::Trouble::other_root;
      result.handle =
          session_.broadcast_async(op.name, tensor, {.root = other_root ? (op.root + 1) % session_.size() : op.root});
    } else {
      const bool other_op = odd && op.trouble == RandomOp::Trouble::other_op;
      const ReduceOp reduce = other_op ? (op.op == ReduceOp::sum ? ReduceOp::max : ReduceOp::sum) : op.op;
      result.handle = session_.all_reduce_async(op.name, tensor, {.op = reduce});
    }
    return result;
  }

  void finish_one(std::vector<std::unique_ptr<InFlight>>& open) {
    const auto place = open.begin() + draw(0, static_cast<int>(open.size()) - 1);
    InFlight& one = **place;
    const RandomOp& op = *one.op;
    try {
      one.handle.wait();
      EXPECT_FALSE(op.fails()) << op.name << " in step " << step_ << " ought to fail";
      Values expected = one.values;
      expected.fill([&](std::int64_t i) { return testing::result_of(op, step_, session_.size(), i); });
      EXPECT_EQ(one.values == expected, true) << op.name << " in step " << step_ << " on rank " << session_.rank();
    } catch (const Error& error) {
      errors_.add(step_, op.name, error.what());
      EXPECT_EQ(error.code(),
                op.trouble == RandomOp::Trouble::null_pointer ? ErrorCode::invalid_argument : ErrorCode::mismatch);
    }
    open.erase(place);
  }

  Session& session_;
  const std::vector<RandomStep>& steps_;
  std::mt19937_64 random_;
  AgreedErrors& errors_;
  int step_ = 0;
};

struct World4 {
  int ranks;
  const char* fake_nodes;
};
constexpr World4 worlds[] = {{1, ""}, {2, ""}, {3, ""}, {4, ""}, {2, "1,1"}, {4, "2,2"}, {4, "3,1"}, {4, "1,1,1,1"}};

class RandomSession : public ::testing::TestWithParam<World4> {};
INSTANTIATE_TEST_SUITE_P(Worlds, RandomSession, ::testing::ValuesIn(worlds), [](const auto& info) {
  std::string nodes = info.param.fake_nodes;
  std::replace(nodes.begin(), nodes.end(), ',', '_');
  return std::to_string(info.param.ranks) + (nodes.empty() ? "ranks" : "ranks_on_" + nodes);
});

TEST_P(RandomSession, EveryProgramMatchesTheSerialModel) {
  const std::uint64_t count = sanitized ? 40 : 400;
  const auto [ranks, fake_nodes] = GetParam();
  for (const std::uint64_t seed : testing::seeds(count)) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Config config;
    config.fake_nodes = fake_nodes;
    config.fusion_bytes = seed % 3 == 0 ? 64 : seed % 3 == 1 ? 4096 : 64 << 20;
    config.spin_us = seed % 2 == 0 ? 200 : 0;
    config.stall_report_seconds = 15;
    config.stall_abort_seconds = 20;
    config.report = [seed](const std::string& line) {
      std::fprintf(stderr, "seed %llu: %s\n", static_cast<unsigned long long>(seed), line.c_str());
    };
    const auto steps = RandomSteps(seed, ranks).write();
    AgreedErrors errors;
    run_ranks(
        ranks, [&](Session& session) { Program(session, steps, seed, errors).run(); }, config);
    errors.check(ranks, steps);
    if (::testing::Test::HasFailure()) FAIL() << "replay with KOLO_TEST_SEED=" << seed;
  }
}

}  // namespace
}  // namespace kolo
