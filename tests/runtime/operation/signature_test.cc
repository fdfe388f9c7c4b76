#include <gtest/gtest.h>

#include <limits>

#include <kolo/error.h>
#include <kolo/op.h>
#include <kolo/tensor.h>

namespace kolo {
namespace {

TEST(Signature, ReadsAsInMessages) {
  Signature signature{OpKind::all_reduce, ReduceOp::sum, DType::f32, DeviceKind::cpu, 0, 1, 1, false, 0, {5, 4}};
  EXPECT_EQ(to_string(signature), "all_reduce(sum) f32[5,4]");
  signature.device = DeviceKind::cuda;
  EXPECT_EQ(to_string(signature), "all_reduce(sum) f32[5,4] on cuda");
  signature.prescale = 0.5;
  signature.postscale = 2;
  EXPECT_EQ(to_string(signature), "all_reduce(sum) f32[5,4] on cuda prescale 0.5 postscale 2");
  EXPECT_EQ(to_string(Signature{.kind = OpKind::broadcast, .dtype = DType::i64}), "broadcast(root 0) i64[]");
  EXPECT_EQ(to_string(Signature{.kind = OpKind::barrier}), "barrier");
  EXPECT_EQ(
      to_string(Signature{.kind = OpKind::reduce, .op = ReduceOp::bit_or, .dtype = DType::u8, .root = 2, .shape = {3}}),
      "reduce(bit_or, root 2) u8[3]");
  EXPECT_EQ(to_string(Signature{.kind = OpKind::reduce_scatter, .op = ReduceOp::average, .shape = {7, 2}}),
            "reduce_scatter(average) f32[7,2]");
  EXPECT_EQ(to_string(Signature{.kind = OpKind::all_gather, .shape = {7, 2}}), "all_gather f32[7,2]");
  EXPECT_EQ(to_string(Signature{.kind = OpKind::all_to_all, .shape = {8}}), "all_to_all f32[8]");
  EXPECT_EQ(to_string(Signature{.kind = OpKind::gather, .root = 1, .shape = {8}}), "gather(root 1) f32[8]");
  EXPECT_EQ(to_string(Signature{.kind = OpKind::scatter, .root = 1, .shape = {8}}), "scatter(root 1) f32[8]");
}

TEST(Rows, AreDealtOutInRankOrder) {
  for (const std::int64_t rows : {0, 1, 2, 3, 4, 7, 8, 1000}) {
    for (const int ranks : {1, 2, 3, 4, 7}) {
      std::int64_t end = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const RowRange range = rows_of_rank(rows, ranks, rank);
        EXPECT_EQ(range.begin, end);
        EXPECT_EQ(range.count(), rows / ranks + (rank < rows % ranks ? 1 : 0));
        end = range.end;
      }
      EXPECT_EQ(end, rows);
    }
  }
}

TEST(Shape, CountsElements) {
  EXPECT_EQ(Shape{}.elements(), 1);
  EXPECT_EQ((Shape{5, 4}).elements(), 20);
  EXPECT_EQ((Shape{5, 0, 4}).elements(), 0);
  EXPECT_EQ((Shape{1 << 20, 1 << 20}).elements(), std::int64_t{1} << 40);
  EXPECT_EQ((Shape{std::int64_t{1} << 40, std::int64_t{1} << 40, 0}).elements(), 0);
  const Tensor tensor{nullptr, Shape{3, 5}, DType::f16, {}};
  EXPECT_EQ(tensor.bytes(), 30u);
}

TEST(Shape, KnowsWhatCannotBe) {
  EXPECT_TRUE(Shape{}.valid());
  EXPECT_TRUE((Shape{1, 2, 3, 4, 5, 6, 7, 8}).valid());
  EXPECT_FALSE((Shape{1, 2, 3, 4, 5, 6, 7, 8, 9}).valid());
  EXPECT_FALSE((Shape{3, -1}).valid());
  EXPECT_FALSE((Shape{0, -1}).valid());
  EXPECT_FALSE((Shape{std::int64_t{1} << 31, std::int64_t{1} << 31}).valid()) << "more bytes than an address can count";
  EXPECT_EQ(to_string(Shape{3, -1}), "[3,-1]");
  EXPECT_EQ(to_string(Shape{1, 2, 3, 4, 5, 6, 7, 8, 9}), "[1,2,3,4,5,6,7,8,…]");
}

TEST(Shape, ComparesExtentsAndTheirNumber) {
  EXPECT_EQ((Shape{2, 3}), (Shape{2, 3}));
  EXPECT_NE((Shape{2, 3}), (Shape{3, 2}));
  EXPECT_NE((Shape{2}), (Shape{2, 0}));
}

TEST(Error, CodesAreWords) {
  EXPECT_EQ(to_string(ErrorCode::invalid_argument), "invalid_argument");
  EXPECT_EQ(to_string(ErrorCode::backend), "backend");
  EXPECT_EQ(to_string(OpKind::all_reduce), "all_reduce");
  EXPECT_EQ(to_string(ReduceOp::product), "product");
  EXPECT_EQ(to_string(ReduceOp::adasum), "adasum");
}

}  // namespace
}  // namespace kolo
