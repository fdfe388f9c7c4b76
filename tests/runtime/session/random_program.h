#pragma once

#include <fmt/format.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <kolo/float16.h>
#include <kolo/session.h>

#include "tests/ops/kernels/element_types.h"

namespace kolo::testing {

/// One operation of a step that all ranks run, and what is special about it.
struct RandomOp {
  enum class Trouble { none, withdrawn, other_shape, other_dtype, other_op, other_root, null_pointer };
  std::string name;
  OpKind kind = OpKind::all_reduce;
  ReduceOp op = ReduceOp::sum;
  DType dtype = DType::f32;
  std::int64_t elements = 1;
  int root = 0;
  Trouble trouble = Trouble::none;
  int troubled_rank = 0;  ///< the rank that withdraws it first, or that submits something else

  bool fails() const { return trouble != Trouble::none && trouble != Trouble::withdrawn; }
};

/// Operations that are in flight together. With `common_order` all ranks submit them in this order, and may wait in
/// between.
struct RandomStep {
  std::vector<RandomOp> ops;
  bool common_order = true;
  bool barrier = false;
  std::shared_ptr<std::atomic<bool>> dropped =
      std::make_shared<std::atomic<bool>>(false);  ///< the withdrawn handle is gone
};

/// Steps over some names that mostly repeat themselves, with tensors missing, new, reshaped or failing in between. A
/// function of the seed and the number of ranks.
class RandomSteps {
 public:
  RandomSteps(std::uint64_t seed, int ranks) : random_(seed), ranks_(ranks) {}

  std::vector<RandomStep> write() {
    for (int i = draw(1, 12); i > 0; --i) names_.push_back(fresh(fmt::format("t{}", i)));
    std::vector<RandomStep> steps(static_cast<std::size_t>(draw(1, 6)));
    for (RandomStep& step : steps) fill(step);
    return steps;
  }

 private:
  int draw(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }
  bool chance(int percent) { return draw(1, 100) <= percent; }

  std::int64_t size() {
    if (chance(3)) return draw(60000, 90000);
    return chance(10) ? draw(0, 1) : draw(2, 600);
  }

  RandomOp fresh(const std::string& name) {
    RandomOp op;
    op.name = name;
    op.kind = chance(15) ? OpKind::broadcast : OpKind::all_reduce;
    op.op = op.kind == OpKind::broadcast ? ReduceOp::sum : reduce_ops[static_cast<std::size_t>(draw(0, 4))];
    op.dtype = chance(70) ? DType::f32 : reducible_types[static_cast<std::size_t>(draw(0, 11))];
    op.elements = size();
    op.root = op.kind == OpKind::broadcast ? draw(0, ranks_ - 1) : 0;
    return op;
  }

  void fill(RandomStep& step) {
    step.common_order = chance(60);
    step.barrier = chance(20);
    for (RandomOp& known : names_) {
      if (chance(8)) known = fresh(known.name);
      if (!chance(8)) step.ops.push_back(known);
    }
    if (chance(10)) names_.push_back(fresh(fmt::format("late{}", names_.size())));
    if (ranks_ == 1 || step.ops.empty()) return;
    if (chance(25)) pick(step).trouble = RandomOp::Trouble::withdrawn;
    if (chance(25)) {
      RandomOp& op = pick(step);
      if (op.trouble == RandomOp::Trouble::none) op.trouble = wrong(op);
    }
  }

  RandomOp& pick(RandomStep& step) {
    RandomOp& op = step.ops[static_cast<std::size_t>(draw(0, static_cast<int>(step.ops.size()) - 1))];
    op.troubled_rank = draw(0, ranks_ - 1);
    return op;
  }

  RandomOp::Trouble wrong(const RandomOp& op) {
    switch (draw(0, 3)) {
      case 0: return RandomOp::Trouble::other_dtype;
      case 1: return op.kind == OpKind::broadcast ? RandomOp::Trouble::other_root : RandomOp::Trouble::other_op;
      case 2: return op.elements > 0 ? RandomOp::Trouble::null_pointer : RandomOp::Trouble::other_shape;
      default: return RandomOp::Trouble::other_shape;
    }
  }

  std::mt19937_64 random_;
  int ranks_;
  std::vector<RandomOp> names_;
};

/// What `rank` submits at element i: a whole number in 1…3, times the number of ranks where it is averaged, so that
/// every result is exact in every type.
inline int value_of(const RandomOp& op, int step, int rank, int ranks, std::int64_t i) {
  const int value = 1 + static_cast<int>((i + 7 * rank + step) % 3);
  return op.op == ReduceOp::average ? value * ranks : value;
}

/// The result at element i, by adding up rank after rank.
inline int result_of(const RandomOp& op, int step, int ranks, std::int64_t i) {
  if (op.kind == OpKind::broadcast) return value_of(op, step, op.root, ranks, i);
  int result = value_of(op, step, 0, ranks, i);
  for (int rank = 1; rank < ranks; ++rank) {
    const int value = value_of(op, step, rank, ranks, i);
    switch (op.op) {
      case ReduceOp::sum:
      case ReduceOp::average: result += value; break;
      case ReduceOp::min: result = std::min(result, value); break;
      case ReduceOp::max: result = std::max(result, value); break;
      case ReduceOp::product: result *= value; break;
      default: break;  // no other op is drawn
    }
  }
  return op.op == ReduceOp::average ? result / ranks : result;
}

/// `value` as an element of type T.
template <class T>
T element(int value) {
  if constexpr (std::is_same_v<T, Float16>)
    return to_float16(static_cast<float>(value));
  else if constexpr (std::is_same_v<T, BFloat16>)
    return to_bfloat16(static_cast<float>(value));
  else
    return static_cast<T>(value);
}

/// Elements of any type, and the checks on them.
class Values {
 public:
  Values(DType dtype, std::int64_t elements)
      : dtype_(dtype), bytes_(static_cast<std::size_t>(elements) * size_of(dtype)) {}

  template <class ValueAt>
  void fill(ValueAt&& value_at) {
    with_type(dtype_, [&]<class T>() {
      for (std::size_t i = 0; i < bytes_.size() / sizeof(T); ++i) {
        const T value = element<T>(value_at(static_cast<std::int64_t>(i)));
        std::memcpy(bytes_.data() + i * sizeof(T), &value, sizeof(T));
      }
    });
  }
  Tensor tensor() {
    return {bytes_.data(), Shape{static_cast<std::int64_t>(bytes_.size() / size_of(dtype_))}, dtype_, {}};
  }
  friend bool operator==(const Values&, const Values&) = default;

 private:
  DType dtype_;
  std::vector<std::byte> bytes_;
};

}  // namespace kolo::testing
