// What check_arguments() refuses, word for word.

#include "runtime/operation/arguments.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

namespace kolo {
namespace {

std::string text_of(const std::optional<Failure>& failure) {
  if (!failure) return "";
  EXPECT_EQ(failure->code, ErrorCode::invalid_argument);
  return failure->message;
}

std::string all_reduce_text(DType dtype, ReduceOp op, double prescale = 1, double postscale = 1) {
  std::vector<double> memory(4);
  const Tensor tensor{memory.data(), Shape{4}, dtype, {}};
  return text_of(
      check_arguments({.op = op, .dtype = dtype, .prescale = prescale, .postscale = postscale, .shape = tensor.shape},
                      {tensor, tensor}, {.ranks = {0, 1}}));
}

TEST(Arguments, OpsThatATypeDoesNotHave) {
  EXPECT_EQ(all_reduce_text(DType::boolean, ReduceOp::sum),
            "sum of bool is not defined; use logical_or or logical_and, or convert to an integer type");
  EXPECT_EQ(all_reduce_text(DType::boolean, ReduceOp::average),
            "average of bool is not defined; use logical_or or logical_and, or convert to an integer type");
  EXPECT_EQ(all_reduce_text(DType::f16, ReduceOp::bit_xor),
            "bit_xor of f16 is not defined; use an integer type or bool");
  EXPECT_EQ(all_reduce_text(DType::f32, ReduceOp::logical_and),
            "logical_and of f32 is not defined; use an integer type or bool");
  EXPECT_EQ(all_reduce_text(DType::boolean, ReduceOp::logical_or), "");
  EXPECT_EQ(all_reduce_text(DType::u8, ReduceOp::bit_and), "");
}

TEST(Arguments, AdasumWorksOnFloatsByAllReduce) {
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
    EXPECT_EQ(all_reduce_text(dtype, ReduceOp::adasum, 0.5, -2), "");
  }
  for (const auto& [dtype, name] : {std::pair{DType::i32, "i32"}, {DType::u8, "u8"}, {DType::boolean, "bool"}}) {
    EXPECT_EQ(all_reduce_text(dtype, ReduceOp::adasum),
              std::string("adasum of ") + name +
                  " is not defined (it multiplies tensors by fractions); use a floating-point type");
  }
  std::vector<float> values(4);
  const auto text = [&](OpKind kind) {
    return text_of(check_arguments(
        {.kind = kind, .op = ReduceOp::adasum, .shape = {4}},
        {view(values), kind == OpKind::reduce ? view(values) : view(values.data(), Shape{2})}, {.ranks = {0, 1}}));
  };
  EXPECT_EQ(text(OpKind::reduce), "reduce does not work with adasum (only all_reduce does); use all_reduce");
  EXPECT_EQ(text(OpKind::reduce_scatter),
            "reduce_scatter does not work with adasum (only all_reduce does); use all_reduce");
}

TEST(Arguments, ScalesWhereNothingIsCounted) {
  EXPECT_EQ(all_reduce_text(DType::i32, ReduceOp::bit_or, 0.5),
            "bit_or of i32 takes no scales (prescale is 0.5, postscale is 1); leave them at 1");
  EXPECT_EQ(all_reduce_text(DType::boolean, ReduceOp::max, 1, 2),
            "max of bool takes no scales (prescale is 1, postscale is 2); leave them at 1");
  EXPECT_EQ(all_reduce_text(DType::i32, ReduceOp::max, 2, 3), "");
}

/// What rank 1 of 3 gets for f32 tensors of these shapes that lie apart, with root 1.
std::string text_of(OpKind kind, const Shape& in, const Shape& out) {
  static float memory[2];
  return text_of(check_arguments({.kind = kind, .root = 1, .shape = in}, {view(&memory[0], in), view(&memory[1], out)},
                                 {.ranks = {0, 4, 5}, .rank = 1}));
}

TEST(Arguments, OutputsThatDoNotFit) {
  // The tensors are empty, so that nothing overlaps and nothing is touched.
  for (const OpKind kind : {OpKind::all_gather, OpKind::gather, OpKind::all_to_all}) {
    EXPECT_EQ(text_of(kind, {3, 0}, {7, 0}), "") << "how many rows must fit is agreed later";
    EXPECT_EQ(text_of(kind, {3, 0}, {7, 1}),
              "input and output differ in more than their rows (in: f32[3,0] on cpu; out: f32[7,1] on cpu); pass two "
              "tensors of one kind");
    EXPECT_EQ(text_of(kind, {3, 0}, {0}),
              "input and output differ in more than their rows (in: f32[3,0] on cpu; out: f32[0] on cpu); pass two "
              "tensors of one kind");
  }
  EXPECT_EQ(text_of(OpKind::reduce_scatter, {8, 0}, {3, 0}), "");
  EXPECT_EQ(text_of(OpKind::reduce_scatter, {7, 0}, {3, 0}),
            "the output does not fit (in: f32[7,0] on cpu; out: f32[3,0] on cpu; the group has 3 ranks); pass out: "
            "f32[2,0] on cpu");
  EXPECT_EQ(text_of(OpKind::scatter, {1, 0}, {1, 0}),
            "the output does not fit (in: f32[1,0] on cpu; out: f32[1,0] on cpu; the group has 3 ranks); pass out: "
            "f32[0,0] on cpu");
  for (const OpKind kind : {OpKind::all_reduce, OpKind::reduce, OpKind::broadcast}) {
    EXPECT_EQ(text_of(kind, {3, 0}, {3, 0}), "");
    EXPECT_EQ(text_of(kind, {3, 0}, {6, 0}),
              "input and output differ (in: f32[3,0] on cpu; out: f32[6,0] on cpu); pass two tensors of one kind");
  }
}

TEST(Arguments, RowsThatCannotBeShared) {
  for (const OpKind kind :
       {OpKind::all_gather, OpKind::gather, OpKind::reduce_scatter, OpKind::scatter, OpKind::all_to_all}) {
    EXPECT_EQ(text_of(kind, {}, {}),
              "the tensor is a scalar (the operation works on rows); pass one with a dimension, such as [1]");
  }
  EXPECT_EQ(text_of(OpKind::all_to_all, {7, 0}, {7, 0}),
            "7 rows cannot be cut into 3 equal blocks (the shape is [7,0]); make them a multiple of the group's size, "
            "or pass splits");
}

TEST(Arguments, SplitsThatDoNotFit) {
  std::vector<float> in(7), out(7);
  const auto check = [&](const std::vector<std::int64_t>& splits) {
    return text_of(check_arguments({.kind = OpKind::all_to_all, .shape = {7}}, {view(in), view(out)},
                                   {.ranks = {0, 4, 5}, .rank = 1}, {.splits = splits}));
  };
  EXPECT_EQ(check({3, 0, 4}), "");
  EXPECT_EQ(check({3, 4}), "2 splits for a group of 3 ranks; pass one for each rank");
  EXPECT_EQ(check({3, 3, 3}),
            "the splits [3,3,3] do not cut the 7 rows of the input (none may be negative, their sum must be that); "
            "pass fitting ones");
  EXPECT_EQ(check({8, -2, 1}),
            "the splits [8,-2,1] do not cut the 7 rows of the input (none may be negative, their sum must be that); "
            "pass fitting ones");
  const std::int64_t most = std::numeric_limits<std::int64_t>::max();
  EXPECT_NE(check({most, most, 9}), "") << "their sum overflows";
}

TEST(Arguments, AnOutputAndAWayToMakeOne) {
  std::vector<float> values(3), out(9);
  EXPECT_EQ(text_of(check_arguments({.kind = OpKind::all_gather, .shape = {3}}, {view(values), view(out)},
                                    {.ranks = {0, 4, 5}, .rank = 1}, {.allocates = true})),
            "both an output and a function that allocates one were passed; pass one of them");
}

TEST(Arguments, WhatIsNotUsedIsNotLookedAt) {
  const Tensor nothing{};
  const Tensor strange{nullptr, Shape{-3}, DType::i8, {DeviceKind::cuda, 1}};
  std::vector<float> values(6);
  const GroupInfo group{.ranks = {0, 4, 5}, .rank = 1};
  for (const Tensor& out : {nothing, strange}) {
    EXPECT_EQ(text_of(check_arguments({.kind = OpKind::reduce, .root = 2, .shape = {6}}, {view(values), out}, group)),
              "");
    EXPECT_EQ(text_of(check_arguments({.kind = OpKind::gather, .root = 2, .shape = {6}}, {view(values), out}, group)),
              "");
  }
  const Tensor described{.shape = {18}};
  EXPECT_EQ(
      text_of(check_arguments({.kind = OpKind::scatter, .root = 2, .shape = {18}}, {described, view(values)}, group)),
      "");
  EXPECT_EQ(
      text_of(check_arguments({.kind = OpKind::scatter, .root = 1, .shape = {18}}, {described, view(values)}, group)),
      "the tensor's memory is a null pointer (its shape is [18])");
}

TEST(Arguments, OverlapsOtherThanInPlace) {
  std::vector<float> memory(21);
  const GroupInfo group{.ranks = {0, 4, 5}, .rank = 1};
  const auto rows = [&](int begin, int count) { return view(memory.data() + begin, Shape{count}); };
  const auto check = [&](OpKind kind, const Tensor& in, const Tensor& out) {
    return text_of(check_arguments({.kind = kind, .root = 1, .shape = in.shape}, {in, out}, group));
  };
  for (const OpKind kind : {OpKind::all_gather, OpKind::gather}) {
    EXPECT_EQ(check(kind, rows(4, 4), rows(0, 12)), "");
    EXPECT_EQ(check(kind, rows(12, 4), rows(0, 12)), "");
    EXPECT_EQ(check(kind, rows(5, 4), rows(0, 12)), "") << "which rows it must be is agreed later";
    EXPECT_EQ(check(kind, rows(9, 4), rows(0, 12)),
              "input and output overlap, and the input is not this rank's block of the output; pass that block, or two "
              "tensors apart");
  }
  for (const OpKind kind : {OpKind::reduce_scatter, OpKind::scatter}) {
    EXPECT_EQ(check(kind, rows(0, 10), rows(4, 3)), "");
    EXPECT_EQ(check(kind, rows(0, 10), rows(10, 3)), "");
    EXPECT_EQ(check(kind, rows(0, 10), rows(0, 3)),
              "input and output overlap, and the output is not this rank's rows of the input; pass these rows, or two "
              "tensors apart");
  }
  for (const OpKind kind : {OpKind::all_reduce, OpKind::reduce, OpKind::all_to_all}) {
    EXPECT_EQ(check(kind, rows(3, 6), rows(3, 6)), "");
    EXPECT_EQ(check(kind, rows(3, 6), rows(4, 6)),
              "input and output overlap without being the same memory; pass the same tensor twice, or two apart");
  }
}

TEST(Arguments, RootsOutsideTheGroup) {
  std::vector<float> values(4);
  for (const OpKind kind : {OpKind::broadcast, OpKind::reduce, OpKind::gather, OpKind::scatter}) {
    for (const int root : {-1, 3}) {
      EXPECT_EQ(text_of(check_arguments({.kind = kind, .root = root, .shape = {4}}, {view(values), view(values)},
                                        {.ranks = {0, 4, 5}})),
                "root " + std::to_string(root) + " is not a rank of the group (it has 3, from 0)");
    }
  }
}

}  // namespace
}  // namespace kolo
