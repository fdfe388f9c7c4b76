// In which order buckets are started, what an operation that holds its backend keeps back, and what counts as progress.

#include "runtime/coordinator/executor.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace kolo {
namespace {

struct Script {
  std::vector<DType> started;
  std::map<DType, bool> complete, holds, moves, polls, fails;
  std::map<DType, int> steps, ended;
  std::vector<DType> reserved;
  std::shared_ptr<const int> kept = std::make_shared<const int>(0);
  bool recovers = false;
};

class ScriptedOperation final : public Operation {
 public:
  ScriptedOperation(Script& script, DType dtype) : script_(script), dtype_(dtype) { script_.started.push_back(dtype); }
  ScriptedOperation(const ScriptedOperation&) = delete;
  ScriptedOperation& operator=(const ScriptedOperation&) = delete;
  ~ScriptedOperation() override { ++script_.ended[dtype_]; }
  bool step() override {
    ++script_.steps[dtype_];
    if (script_.fails[dtype_]) throw Error(ErrorCode::backend, "there is no memory");
    return script_.complete[dtype_];
  }
  bool needs_polling() const override { return script_.polls[dtype_]; }
  bool holds_backend() const override { return script_.holds[dtype_]; }
  bool moved() const override { return script_.moves[dtype_]; }

 private:
  Script& script_;
  DType dtype_;
};

class ScriptedBackend final : public Backend {
 public:
  explicit ScriptedBackend(Script& script) : script_(script) {}
  std::string_view name() const override { return "scripted"; }
  bool supports(const Signature& signature) const override {
    return signature.device == DeviceKind::cpu && reducible(signature);
  }
  std::unique_ptr<Operation> start(const Bucket& bucket) override {
    for (const BucketTensor& tensor : bucket.tensors) {  // all ranks say the same
      for (std::size_t at = 0; tensor.out.data && at < tensor.out.bytes(); at += tensor.in.bytes())
        std::memcpy(static_cast<std::byte*>(tensor.out.data) + at, tensor.in.data, tensor.in.bytes());
    }
    return std::make_unique<ScriptedOperation>(script_, bucket.signature.dtype);
  }
  std::unique_ptr<Backend> for_group(const GroupInfo&) override { return nullptr; }
  void abandon() noexcept override {}

 private:
  Script& script_;
};

class ScriptedDevice final : public DeviceBackend {
 public:
  explicit ScriptedDevice(Script& script) : script_(script) {}
  std::string_view name() const override { return "device"; }
  bool supports(const Signature& signature) const override { return signature.device == DeviceKind::cuda; }
  std::shared_ptr<const void> reserve(const Signature& signature) override {
    if (script_.fails[signature.dtype]) throw Error(ErrorCode::backend, "there is no memory");
    script_.reserved.push_back(signature.dtype);
    return script_.kept;
  }
  std::unique_ptr<Operation> start(const Bucket& bucket) override {
    return std::make_unique<ScriptedOperation>(script_, bucket.signature.dtype);
  }
  std::unique_ptr<Backend> for_group(const GroupInfo&) override { return nullptr; }
  void recover() override { script_.recovers = true; }
  bool recovered() override { return !script_.recovers; }
  void abort_device_work() noexcept override {}
  void abandon() noexcept override {}

 private:
  Script& script_;
};

class ExecutorTest : public ::testing::Test {
 protected:
  ExecutorTest() {
    BackendList backends;
    backends.push_back(std::make_unique<ScriptedDevice>(script));
    backends.push_back(std::make_unique<ScriptedBackend>(script));
    executor.emplace(std::move(backends), GroupInfo{.ranks = {0, 1}});
  }

  /// Buckets differ by their types.
  void submit(DType dtype, OpKind kind = OpKind::all_reduce, DeviceKind device = DeviceKind::cpu) {
    Request request;
    request.signature.kind = kind;
    request.signature.dtype = dtype;
    request.signature.device = device;
    if (moves_data(kind)) request.tensors.push_back({});
    executor->start({{std::make_shared<Submission>(std::move(request))}});
  }

  /// The types of what completes in one step.
  std::vector<DType> step() {
    std::vector<Executor::Finished> finished;
    executor->step(finished);
    std::vector<DType> types;
    for (const auto& [submission, failure] : finished) types.push_back(submission->request.signature.dtype);
    return types;
  }

  Script script;
  std::optional<Executor> executor;
};

using Types = std::vector<DType>;

TEST_F(ExecutorTest, StartsInOrderAndCompletesInAny) {
  submit(DType::f64);
  submit(DType::f32);
  EXPECT_EQ(step(), Types{});
  EXPECT_EQ(script.started, (Types{DType::f64, DType::f32}));
  script.complete[DType::f32] = true;
  EXPECT_EQ(step(), Types{DType::f32});
  script.complete[DType::f64] = true;
  EXPECT_EQ(step(), Types{DType::f64});
  EXPECT_FALSE(executor->busy());
}

TEST_F(ExecutorTest, IsAsUrgentAsTheHighestPriorityAndThenAsTheFirstBucketIsSmall) {
  const auto start = [](Executor& chosen, std::int64_t elements, int priority) {
    Request request;
    request.signature.priority = priority;
    request.tensors.push_back({{.shape = Shape{elements}}, {}});
    chosen.start({{std::make_shared<Submission>(std::move(request))}});
  };
  const auto made = [] { return Executor({}, GroupInfo{.ranks = {0, 1}}); };
  Executor small = made(), large = made(), urgent = made(), idle = made();
  start(small, 1, 0);
  start(small, 1 << 20, 0);
  start(large, 1000, 0);
  start(large, 1, 0);
  start(urgent, 1 << 20, 0);
  start(urgent, 1 << 20, 1);
  EXPECT_GT(urgent.urgency(), small.urgency());
  EXPECT_GT(small.urgency(), large.urgency());
  EXPECT_GT(idle.urgency(), large.urgency()) << "a barrier, say, has nothing to move";
}

TEST_F(ExecutorTest, AmongOthersItLooksOnce) {
  submit(DType::f32);
  std::vector<Executor::Finished> finished;
  EXPECT_FALSE(executor->step(finished, true));
  EXPECT_EQ(script.steps[DType::f32], 1);
}

TEST_F(ExecutorTest, WhatHoldsTheBackendKeepsLaterBucketsBack) {
  script.holds[DType::f32] = true;
  submit(DType::f64);
  submit(DType::f32);
  submit(DType::f16);
  EXPECT_EQ(step(), Types{});
  submit(DType::i64);
  submit(DType::i8, OpKind::barrier);
  EXPECT_EQ(step(), Types{DType::i8}) << "a barrier starts nothing";
  EXPECT_EQ(script.started, (Types{DType::f64, DType::f32}));
  script.complete[DType::f64] = true;
  EXPECT_EQ(step(), Types{DType::f64}) << "what was started before goes on";
  EXPECT_EQ(script.started, (Types{DType::f64, DType::f32}));

  script.holds[DType::f32] = false;
  EXPECT_EQ(step(), Types{});
  EXPECT_EQ(script.started, (Types{DType::f64, DType::f32, DType::f16, DType::i64}));
}

TEST_F(ExecutorTest, WhatIsCompleteHoldsNothing) {
  script.holds[DType::f32] = script.complete[DType::f32] = script.complete[DType::f16] = true;
  submit(DType::f32);
  submit(DType::f16);
  EXPECT_EQ(step(), (Types{DType::f32, DType::f16}));
}

TEST_F(ExecutorTest, AnOperationThatMovesIsProgressAlthoughNothingCompletes) {
  std::vector<Executor::Finished> finished;
  const auto progress = [&] { return executor->step(finished); };
  script.polls[DType::f32] = true;
  submit(DType::f32);
  EXPECT_FALSE(progress()) << "it was started, but waits for others";
  submit(DType::f64);
  script.moves[DType::f64] = true;
  EXPECT_TRUE(progress()) << "its first step is in the one that starts it";
  EXPECT_TRUE(progress());
  script.moves[DType::f64] = false;
  EXPECT_FALSE(progress());
  script.moves[DType::f32] = true;
  EXPECT_TRUE(progress());
  EXPECT_TRUE(finished.empty());
  EXPECT_EQ(script.steps, (std::map<DType, int>{{DType::f32, 5}, {DType::f64, 4}}))
      << "each once for a step of the executor";

  script.complete[DType::f32] = true;
  EXPECT_TRUE(progress());
  EXPECT_EQ(finished.size(), 1U);
  EXPECT_FALSE(progress());
}

/// What else a cycle looks at costs more than a look at shared memory; but what a library must be called for may cost
/// more.
TEST_F(ExecutorTest, LooksSeveralTimesAtWhatDoesNotMoveUnlessItMustBePolled) {
  submit(DType::f32);
  EXPECT_EQ(step(), Types{});
  const int looks = script.steps[DType::f32];
  EXPECT_GT(looks, 8);
  script.moves[DType::f32] = true;
  EXPECT_EQ(step(), Types{});
  EXPECT_EQ(script.steps[DType::f32], looks + 1) << "it moved";
  script.moves[DType::f32] = false;
  script.polls[DType::f32] = true;
  EXPECT_EQ(step(), Types{});
  EXPECT_EQ(script.steps[DType::f32], looks + 2);
}

/// Its end tells the peers that this rank has left. First they are to hear why.
TEST_F(ExecutorTest, WhatFailsAtItsFirstStepEndsOnlyWhenItIsAbandoned) {
  script.fails[DType::f32] = true;
  submit(DType::f32);
  EXPECT_THROW(step(), Error);
  EXPECT_EQ(script.ended[DType::f32], 0);
  executor->halt();
  std::vector<Executor::Finished> finished;
  executor->abandon({ErrorCode::backend, "agreed"}, finished);
  EXPECT_EQ(script.ended[DType::f32], 1);
  ASSERT_EQ(finished.size(), 1U);
  EXPECT_EQ(finished[0].failure->message, "agreed");
}

/// What was complete before a later bucket throws is complete, once.
TEST_F(ExecutorTest, OneCompletesAndALaterOneThrowsInTheSameStep) {
  submit(DType::f64);
  submit(DType::f32);
  EXPECT_EQ(step(), Types{});
  script.complete[DType::f64] = script.fails[DType::f32] = true;
  std::vector<Executor::Finished> finished;
  EXPECT_THROW(executor->step(finished), Error);
  ASSERT_EQ(finished.size(), 1U);
  EXPECT_EQ(finished[0].submission->request.signature.dtype, DType::f64);
  EXPECT_FALSE(finished[0].failure);
  finished.clear();
  executor->halt();
  executor->abandon({ErrorCode::backend, "agreed"}, finished);
  ASSERT_EQ(finished.size(), 1U);
  EXPECT_EQ(finished[0].submission->request.signature.dtype, DType::f32);
  EXPECT_EQ(finished[0].failure->message, "agreed");
}

// A barrier that is matched by order: the ranks meet by an exchange of numbers. The others have seen its end.
TEST_F(ExecutorTest, WhereRanksHaveMetWhatIsCompleteIsSoAlsoWhenItIsAbandoned) {
  for (const bool met : {true, false}) {
    const auto group = std::make_shared<const GroupInfo>(GroupInfo{.ranks = {0, 1}, .order = Order::program});
    Request request;
    request.signature.kind = OpKind::barrier;
    request.group = group;
    executor->start({.members = {std::make_shared<Submission>(std::move(request))}, .token = 7});
    script.complete[DType::i64] = false;
    EXPECT_EQ(step(), Types{});
    script.complete[DType::i64] = met;
    std::vector<Executor::Finished> finished;
    executor->abandon({ErrorCode::mismatch, "the next operation differs"}, finished);
    ASSERT_EQ(finished.size(), 1U);
    EXPECT_EQ(finished[0].failure.has_value(), !met);
  }
}

TEST_F(ExecutorTest, AdasumNeedsABackendThatServesItsStages) {
  const Signature adasum{.op = ReduceOp::adasum};
  EXPECT_TRUE(executor->supports(adasum));
  EXPECT_FALSE(executor->supports({.op = ReduceOp::adasum, .dtype = DType::i32}));
  EXPECT_FALSE(executor->supports({.kind = OpKind::reduce, .op = ReduceOp::adasum}));
  EXPECT_FALSE(Executor(BackendList(), {}).supports(adasum));
}

/// Who learns of the failure may write to the tensors at once.
TEST_F(ExecutorTest, WhatFailedOnADeviceIsFinishedWhenThatHasRecovered) {
  for (const bool is_abandoned : {false, true}) {
    submit(DType::f32, OpKind::all_reduce, DeviceKind::cuda);
    script.fails[DType::f32] = true;
    EXPECT_EQ(step(), Types{});
    ASSERT_TRUE(executor->take_fault());
    std::vector<Executor::Finished> finished;
    executor->fail_devices({ErrorCode::backend, "agreed"}, finished);
    EXPECT_TRUE(finished.empty());
    EXPECT_TRUE(executor->busy() && executor->needs_polling());
    script.fails[DType::f32] = false;
    script.complete[DType::f16] = true;
    submit(DType::f16, OpKind::all_reduce, DeviceKind::cuda);
    EXPECT_EQ(step(), Types{DType::f16}) << "nothing waits for it";
    if (is_abandoned) {
      executor->halt();
      executor->abandon({ErrorCode::backend, "the group"}, finished);
    } else {
      script.recovers = false;
      executor->step(finished);
    }
    ASSERT_EQ(finished.size(), 1U);
    EXPECT_EQ(finished[0].failure->message, "agreed");
    EXPECT_FALSE(executor->busy());
  }
}

TEST_F(ExecutorTest, WhatOperationsNeedIsTakenBeforeTheyAreReady) {
  const auto submission = [](const Signature& signature) {
    Request request;
    request.signature = signature;
    return Submission(std::move(request));
  };
  Submission on_host = submission({}), on_device = submission({.device = DeviceKind::cuda}),
             grouped = submission({.device = DeviceKind::cuda, .members = {{"a", DType::f32}, {"b", DType::f16}}}),
             barrier = submission({.kind = OpKind::barrier});
  for (Submission* const one : {&on_host, &barrier, &on_device, &grouped}) EXPECT_FALSE(executor->prepare(*one));
  EXPECT_EQ(script.reserved, (Types{DType::f32, DType::f32, DType::f16}));
  EXPECT_EQ(grouped.pending.reserved, (std::vector<std::shared_ptr<const void>>{script.kept, script.kept}));
  script.fails[DType::f16] = true;
  Submission again = submission(grouped.request.signature);
  EXPECT_EQ(executor->prepare(again)->message, "there is no memory");
  EXPECT_TRUE(again.pending.reserved.empty());
  Submission none = submission({.op = ReduceOp::bit_and});
  EXPECT_EQ(executor->prepare(none)->code, ErrorCode::invalid_argument);
}

}  // namespace
}  // namespace kolo
