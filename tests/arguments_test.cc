// What check_arguments() refuses, word for word.

#include "runtime/arguments.h"

#include <gtest/gtest.h>

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
                      tensor, tensor, {.ranks = {0, 1}}));
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

TEST(Arguments, ScalesWhereNothingIsCounted) {
  EXPECT_EQ(all_reduce_text(DType::i32, ReduceOp::bit_or, 0.5),
            "bit_or of i32 takes no scales (prescale is 0.5, postscale is 1); leave them at 1");
  EXPECT_EQ(all_reduce_text(DType::boolean, ReduceOp::max, 1, 2),
            "max of bool takes no scales (prescale is 1, postscale is 2); leave them at 1");
  EXPECT_EQ(all_reduce_text(DType::i32, ReduceOp::max, 2, 3), "");
}

}  // namespace
}  // namespace kolo
