// The model of kolo-bench's checks against the plainest arithmetic there is, and what it says about a wrong element.

#include "bench/kolo_bench/measure/checker.h"

#include <gtest/gtest.h>

#include <cstring>

#include "bench/kolo_bench/measure/candidate.h"
#include "bench/kolo_bench/measure/collective.h"
#include "bench/kolo_bench/measure/reference.h"
#include "ops/local/backend.h"
#include "tests/ops/kernels/element_types.h"
#include "tests/ops/kernels/reference_reduce.h"

namespace kolo::testing {
namespace {

using namespace kolo::bench;

/// The memory and the work of all ranks of a group.
struct Group {
  Group(const Signature& signature, std::int64_t bytes, bool in_place, int ranks, int lanes = 1) {
    for (int rank = 0; rank < ranks; ++rank) {
      memory.emplace_back(4 * static_cast<std::size_t>(bytes * lanes));
      const auto stride = static_cast<std::size_t>(bytes);
      std::byte* in = memory.back().data();
      const Area area{in, in + 2 * stride * static_cast<std::size_t>(lanes), stride, stride, lanes};
      works.push_back(make_work(signature, bytes, in_place, rank, ranks, area));
    }
  }
  std::vector<std::vector<std::byte>> memory;
  std::vector<Work> works;
};

template <class T>
T element(const Tensor& tensor, std::int64_t index) {
  T value;
  std::memcpy(&value, static_cast<const std::byte*>(tensor.data) + static_cast<std::size_t>(index) * sizeof(T),
              sizeof(T));
  return value;
}

/// Runs the work of all ranks on the backend of ranks as threads, by one thread.
void run_locally(const Group& group) {
  const int ranks = static_cast<int>(group.works.size());
  auto backends = local_backends(ranks, {});
  for (std::size_t lane = 0; lane < group.works[0].lanes.size(); ++lane) {
    std::vector<Bucket> buckets;
    for (const Work& work : group.works) buckets.push_back({work.signature, {work.lanes[lane]}});
    std::vector<std::unique_ptr<Operation>> operations;
    for (std::size_t rank = 0; rank < backends.size(); ++rank)
      operations.push_back(backends[rank]->start(buckets[rank]));
    for (bool all = false; !all;) {
      all = true;
      for (auto& operation : operations) all &= operation->step();
    }
  }
}

TEST(BenchChecker, AcceptsEveryOperationOfABackend) {
  for (const Collective& collective : collectives()) {
    if (collective.kind == OpKind::send_recv) continue;
    for (const int ranks : {1, 2, 3}) {
      for (const bool in_place : {false, true}) {
        if (!in_place && collective.kind == OpKind::broadcast) continue;
        for (const ValueKind kind : {ValueKind::exact, ValueKind::full}) {
          const Signature signature{.kind = collective.kind, .dtype = DType::f32, .root = ranks - 1};
          const Group group(signature, 96 * 1024, in_place, ranks, 2);
          for (int rank = 0; rank < ranks; ++rank)
            Checker(signature, rank, ranks, kind, 7).fill(group.works[static_cast<std::size_t>(rank)]);
          run_locally(group);
          for (int rank = 0; rank < ranks; ++rank) {
            std::optional<WrongElement> first;
            EXPECT_EQ(
                Checker(signature, rank, ranks, kind, 7).wrong(group.works[static_cast<std::size_t>(rank)], &first), 0)
                << collective.name << " of " << ranks << (in_place ? " in place, " : ", ") << to_string(*first);
          }
        }
      }
    }
  }
}

TEST(BenchChecker, SumsInTheOrderOfTheRanks) {
  for (const DType dtype : all_types) {
    for (const ReduceOp op : {ReduceOp::sum, ReduceOp::product, ReduceOp::min, ReduceOp::max, ReduceOp::average}) {
      if (!reducible(op, dtype)) continue;
      const int ranks = 3;
      const Signature signature{.kind = OpKind::all_reduce, .op = op, .dtype = dtype};
      const Group group(signature, 256, false, ranks);
      for (int rank = 0; rank < ranks; ++rank)
        Checker(signature, rank, ranks, ValueKind::full, 3).fill(group.works[static_cast<std::size_t>(rank)]);
      Work mine = group.works[1];
      with_type(dtype, [&]<class T>() {
        for (std::int64_t i = 0; i < mine.lanes[0].in.elements(); ++i) {
          std::array<T, 3> inputs;
          for (std::size_t rank = 0; rank < inputs.size(); ++rank)
            inputs[rank] = element<T>(group.works[rank].lanes[0].in, i);
          const T result = reference_reduce<T>({.dtype = dtype, .op = op, .divide_by = ranks}, inputs);
          std::memcpy(static_cast<std::byte*>(mine.lanes[0].out.data) + static_cast<std::size_t>(i) * sizeof(T),
                      &result, sizeof(T));
        }
      });
      EXPECT_EQ(Checker(signature, 1, ranks, ValueKind::full, 3).wrong(mine), 0)
          << to_string(op) << ' ' << to_string(dtype);
    }
  }
}

/// A finite number of any size, or a truth.
template <class T>
T any_value(std::uint64_t bits) {
  T value{};
  if constexpr (std::is_same_v<T, bool>)
    value = bits % 2 == 1;
  else
    std::memcpy(static_cast<void*>(&value), &bits, sizeof(T));
  if constexpr (is_half<T> || std::is_floating_point_v<T>) {
    if (!std::isfinite(to_long(value))) value = from_double<T>(1.5);
  }
  return value;
}

/// The program's own arithmetic against that of the kernels' tests.
TEST(BenchReference, EveryOperationOnEveryType) {
  constexpr std::size_t count = 1 << 16, most_ranks = 4;
  for (const DType dtype : all_types) {
    with_type(dtype, [&]<class T>() {
      const auto elements = std::make_unique<std::array<std::array<T, count>, most_ranks>>();
      const auto result = std::make_unique<std::array<T, count>>();
      std::vector<const std::byte*> inputs;
      for (std::size_t rank = 0; rank < most_ranks; ++rank) {
        auto& of_rank = (*elements)[rank];
        for (std::size_t i = 0; i < count; ++i)  // among the first rank's is every 16-bit number
          of_rank[i] = any_value<T>(rank == 0 && sizeof(T) == 2 ? i : detail::mixed(i * most_ranks + rank));
        inputs.push_back(reinterpret_cast<const std::byte*>(of_rank.data()));
        for (const ReduceOp op : all_reduce_ops) {
          if (!reducible(op, dtype) || op == ReduceOp::adasum) continue;
          reference_reduction(op, dtype, inputs, count, reinterpret_cast<std::byte*>(result->data()));
          const Reduction how{.dtype = dtype, .op = op, .divide_by = static_cast<int>(inputs.size())};
          for (std::size_t i = 0; i < count; ++i) {
            std::array<T, most_ranks> one;
            for (std::size_t r = 0; r <= rank; ++r) one[r] = (*elements)[r][i];
            const T want = reference_reduce<T>(how, std::span<const T>(one).first(rank + 1));
            ASSERT_EQ(std::memcmp(&(*result)[i], &want, sizeof(T)), 0)
                << to_string(op) << ' ' << to_string(dtype) << " of " << inputs.size() << ", element " << i;
          }
        }
      }
    });
  }
}

TEST(BenchChecker, ExactValuesGiveTheSameBitsInAnyOrder) {
  for (const DType dtype : all_types) {
    for (const ReduceOp op : {ReduceOp::sum, ReduceOp::product, ReduceOp::min, ReduceOp::average}) {
      if (!reducible(op, dtype)) continue;
      with_type(dtype, [&]<class T>() {
        constexpr int ranks = 5;
        constexpr std::int64_t count = 200;
        std::array<std::array<T, count>, ranks> inputs;
        for (std::size_t rank = 0; rank < inputs.size(); ++rank) {
          const Values values{OpKind::all_reduce, op, dtype, ranks, ValueKind::exact, 1};
          values.write(static_cast<int>(rank), 0, count, reinterpret_cast<std::byte*>(inputs[rank].data()));
        }
        for (std::size_t i = 0; i < count; ++i) {
          std::array<T, ranks> up, down;
          for (std::size_t r = 0; r < ranks; ++r) up[r] = down[ranks - 1 - r] = inputs[r][i];
          const Reduction how{.dtype = dtype, .op = op, .divide_by = ranks};
          ASSERT_EQ(reference_reduce<T>(how, up), reference_reduce<T>(how, down))
              << to_string(op) << ' ' << to_string(dtype) << ' ' << i;
        }
      });
    }
  }
}

TEST(BenchChecker, FindsAPlantedElement) {
  const Signature signature{.kind = OpKind::all_reduce, .dtype = DType::f32};
  const Group group(signature, 256 * 1024, false, 2, 2);
  const Checker checker(signature, 0, 2, ValueKind::exact, 1);
  for (int rank = 0; rank < 2; ++rank)
    Checker(signature, rank, 2, ValueKind::exact, 1).fill(group.works[static_cast<std::size_t>(rank)]);
  EXPECT_EQ(checker.wrong(group.works[0]), 2 * 64 * 1024) << "nothing has been reduced";
  run_locally(group);
  EXPECT_EQ(checker.wrong(group.works[0]), 0);

  const Tensor& out = group.works[0].lanes[1].out;
  auto* last = static_cast<std::byte*>(out.data) + out.bytes() - 4;
  *last ^= std::byte{1};  // the lowest bit of the last element
  std::optional<WrongElement> first;
  EXPECT_EQ(checker.wrong(group.works[0], &first), 1);
  ASSERT_TRUE(first);
  EXPECT_EQ(first->lane, 1);
  EXPECT_EQ(first->index, 64 * 1024 - 1);
  EXPECT_FALSE(first->of_input);
  EXPECT_NE(first->want, first->got);
  EXPECT_EQ(to_string(*first),
            "element 65535 of the output of operation 1 is " + first->got + " instead of " + first->want);

  *last ^= std::byte{1};
  *static_cast<std::byte*>(group.works[0].lanes[0].in.data) ^= std::byte{1};
  first.reset();
  EXPECT_EQ(checker.wrong(group.works[0], &first), 1);
  EXPECT_TRUE(first && first->of_input && first->index == 0);
}

/// Changes one element of what another backend has computed.
class Faulty final : public Backend {
 public:
  explicit Faulty(std::unique_ptr<Backend> real) : real_(std::move(real)) {}
  std::string_view name() const override { return "faulty"; }
  bool supports(const Signature& signature) const override { return real_->supports(signature); }
  std::unique_ptr<Operation> start(const Bucket& bucket) override {
    auto* out = static_cast<float*>(bucket.tensors.front().out.data);
    auto operation = real_->start(bucket);
    while (!operation->step()) {
    }
    out[5] += 1;
    return operation;
  }
  std::unique_ptr<Backend> for_group(const GroupInfo&) override { return nullptr; }
  void abandon() noexcept override { real_->abandon(); }

 private:
  std::unique_ptr<Backend> real_;
};

TEST(BenchChecker, FindsWhatABackendDoesWrong) {
  const Signature signature{.kind = OpKind::all_reduce, .dtype = DType::f32};
  const Group group(signature, 1024, false, 1);
  const Checker checker(signature, 0, 1, ValueKind::exact, 1);
  BackendList backends = local_backends(1, {});
  checker.fill(group.works[0]);
  direct(backends, 0, 1, false, group.works[0])->run();
  EXPECT_EQ(checker.wrong(group.works[0]), 0);

  backends.insert(backends.begin(), std::make_unique<Faulty>(std::move(backends.front())));
  checker.fill(group.works[0]);
  direct(backends, 0, 1, false, group.works[0])->run();
  std::optional<WrongElement> first;
  EXPECT_EQ(checker.wrong(group.works[0], &first), 1);
  EXPECT_EQ(first->index, 5);
}

/// As NCCL averages: every input times 1/n, rounded; added in another order.
TEST(CheckerOfAverages, TakesRoundingAndNothingElse) {
  constexpr int ranks = 3;
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
    with_type(dtype, [&]<class T>() {
      if constexpr (is_half<T> || std::is_floating_point_v<T>) {
        const auto widen = [](T value) { return static_cast<double>(to_long(value)); };
        const auto narrow = [](double value) { return from_double<T>(value); };
        constexpr std::int64_t count = 500;
        const Signature how{.op = ReduceOp::average, .dtype = dtype, .shape = Shape{count}};
        std::vector<std::vector<T>> inputs(ranks, std::vector<T>(count));
        std::vector<T> out(count);
        const auto work_of = [&](std::vector<T>& in) {
          Work work;
          work.signature = how;
          const Tensor from{in.data(), Shape{count}, dtype, {}}, to{out.data(), Shape{count}, dtype, {}};
          work.lanes.push_back({from, to});
          return work;
        };
        for (int rank = ranks; rank-- > 0;)
          Checker(how, rank, ranks, ValueKind::exact, 1).fill(work_of(inputs[static_cast<std::size_t>(rank)]));
        const T factor = narrow(1.0 / ranks);
        for (std::size_t i = 0; i < count; ++i) {
          T sum{};
          for (std::size_t rank = ranks; rank-- > 0;)
            sum = narrow(widen(sum) + widen(narrow(widen(inputs[rank][i]) * widen(factor))));
          out[i] = sum;
        }
        const Work mine = work_of(inputs[0]);
        EXPECT_EQ(Checker(how, 0, ranks, ValueKind::exact, 1, true).wrong(mine), 0) << to_string(dtype);
        EXPECT_GT(Checker(how, 0, ranks, ValueKind::exact, 1).wrong(mine), 0)
            << to_string(dtype) << ", to the last bit";
        out[7] = narrow(widen(out[7]) + 20);
        out[8] = std::numeric_limits<T>::is_specialized ? std::numeric_limits<T>::quiet_NaN() : narrow(std::nan(""));
        EXPECT_EQ(Checker(how, 0, ranks, ValueKind::exact, 1, true).wrong(mine), 2) << to_string(dtype);
      }
    });
  }
}

}  // namespace
}  // namespace kolo::testing
