// Which calls of NCCL a bucket becomes: what is decided on the host, without a GPU.

#include "ops/nccl/plan.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "ops/bucket.h"
#include "tests/ops/kernels/element_types.h"

namespace kolo {
namespace {

Signature signature_of(OpKind kind, DType dtype, ReduceOp op = ReduceOp::sum) {
  return {.kind = kind, .op = op, .dtype = dtype, .device = DeviceKind::cuda, .root = 1};
}
NcclMethod method_of(DType dtype, ReduceOp op, std::size_t absent = 0, double prescale = 1, bool wide = false) {
  Signature signature = signature_of(OpKind::all_reduce, dtype, op);
  signature.prescale = prescale;
  return nccl_method(signature, 4, absent, 4 - static_cast<int>(absent), wide);
}

TEST(NcclMethods, FloatsAreSummedAndAveragedByNccl) {
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
    EXPECT_EQ(method_of(dtype, ReduceOp::sum).way, NcclWay::direct);
    EXPECT_EQ(method_of(dtype, ReduceOp::sum).factor, 1);
    EXPECT_EQ(method_of(dtype, ReduceOp::average).op, NcclOp::average);
    EXPECT_EQ(method_of(dtype, ReduceOp::average).factor, 1);
    const NcclMethod of_three = nccl_method({.op = ReduceOp::average, .dtype = dtype}, 3, 0, 3, false);
    EXPECT_EQ(of_three.op, size_of(dtype) > 2 ? NcclOp::average : NcclOp::sum) << "NCCL multiplies by 1/3 in the type";
    EXPECT_EQ(of_three.unpack.divide_by, size_of(dtype) > 2 ? 1 : 3);
    if (size_of(dtype) > 2) {
      EXPECT_EQ(method_of(dtype, ReduceOp::average, 1).factor, 1.0 / 3) << "a rank has joined";
    } else {
      const NcclMethod method = method_of(dtype, ReduceOp::average, 1);  // 16 bits do not hold a third
      EXPECT_EQ(method.wire, DType::f32);
      EXPECT_EQ(method.unpack.divide_by, 3);
    }
    EXPECT_EQ(method_of(dtype, ReduceOp::average, 0, 0.5).factor, 0.125) << "no extra pass";
    EXPECT_EQ(method_of(dtype, ReduceOp::product).op, NcclOp::product);
    for (const ReduceOp op : {ReduceOp::min, ReduceOp::max}) {
      for (const std::size_t absent : {std::size_t{0}, std::size_t{1}}) {
        const NcclMethod method = method_of(dtype, op, absent);
        EXPECT_EQ(method.way, NcclWay::widened) << "NCCL would lose a NaN, and compares keys";
        EXPECT_EQ(method.op, NcclOp::max);
        EXPECT_EQ(method.wire, dtype == DType::f64 ? DType::u64 : DType::u32);
        EXPECT_EQ(method.pack.descending, op == ReduceOp::min);
        EXPECT_EQ(method.unpack.descending, op == ReduceOp::min);
      }
    }
  }
  EXPECT_EQ(method_of(DType::bf16, ReduceOp::sum, 0, 1, true).wire, DType::f32);
  EXPECT_EQ(method_of(DType::f32, ReduceOp::sum, 0, 1, true).way, NcclWay::direct);
}

TEST(NcclMethods, AFactorThatNcclCannotHoldIsAppliedWhereTensorsArePacked) {
  const auto factors = [](const NcclMethod& method) {
    return std::array{method.pack.scale, method.factor, method.unpack.after};
  };
  const auto method = [](DType dtype, double prescale, double postscale) {
    Signature signature = signature_of(OpKind::all_reduce, dtype);
    signature.prescale = prescale;
    signature.postscale = postscale;
    return nccl_method(signature, 4, 0, 4, false);
  };
  EXPECT_EQ(factors(method(DType::f16, 1.0 / 1024, 256)), (std::array{1.0, 0.25, 1.0}));
  EXPECT_EQ(factors(method(DType::f16, 1e-5, 1)), (std::array{1e-5, 1.0, 1.0})) << "a subnormal number";
  EXPECT_EQ(factors(method(DType::f16, 1, 1e6)), (std::array{1.0, 1.0, 1e6})) << "infinite";
  EXPECT_EQ(factors(method(DType::bf16, 3, 1.0 / 7)), (std::array{3.0, 1.0, 1.0 / 7}));
  EXPECT_EQ(method(DType::bf16, 3, 1.0 / 7).wire, DType::f32);
  EXPECT_EQ(factors(method(DType::f32, 1, 0.1)), (std::array{1.0, 0.1, 1.0}));
  EXPECT_EQ(factors(method(DType::f32, 1, 1e300)), (std::array{1.0, 1.0, 1e300}));
  EXPECT_EQ(factors(method(DType::f32, 1e-60, 1)), (std::array{1e-60, 1.0, 1.0}));
  EXPECT_EQ(method(DType::f32, 1e-60, 1).wire, DType::f32);
}

TEST(NcclMethods, OneRankDoesNotScaleByNccl) {
  Signature signature = signature_of(OpKind::all_reduce, DType::f64);
  signature.prescale = 0.5;
  const NcclMethod method = nccl_method(signature, 1, 0, 1, false);
  EXPECT_EQ(method.factor, 1);
  EXPECT_EQ(method.wire, DType::f64);
  EXPECT_EQ(method.pack.scale, 0.5);
}

TEST(NcclMethods, IntegersAreWidenedWhereNcclHasNotTheTypeOrTheResultNeedsIt) {
  EXPECT_EQ(method_of(DType::i32, ReduceOp::sum).way, NcclWay::direct);
  EXPECT_EQ(method_of(DType::u8, ReduceOp::max).op, NcclOp::max);
  EXPECT_EQ(method_of(DType::i32, ReduceOp::average).wire, DType::i64);
  EXPECT_EQ(method_of(DType::i32, ReduceOp::average).unpack.divide_by, 4);
  EXPECT_EQ(method_of(DType::u16, ReduceOp::sum).wire, DType::u64);
  EXPECT_EQ(method_of(DType::i8, ReduceOp::sum, 0, 0.5).pack.scale, 0.5);
  EXPECT_EQ(method_of(DType::i64, ReduceOp::average).way, NcclWay::gathered);
  EXPECT_EQ(method_of(DType::i32, ReduceOp::min, 1).way, NcclWay::gathered);
  for (const ReduceOp op :
       {ReduceOp::bit_and, ReduceOp::bit_or, ReduceOp::bit_xor, ReduceOp::logical_and, ReduceOp::logical_or}) {
    EXPECT_EQ(method_of(DType::i32, op).way, NcclWay::gathered);
  }
  for (const ReduceOp op : {ReduceOp::logical_and, ReduceOp::bit_and, ReduceOp::min, ReduceOp::product})
    EXPECT_TRUE(method_of(DType::boolean, op).op == NcclOp::max && method_of(DType::boolean, op).pack.descending);
  for (const ReduceOp op : {ReduceOp::logical_or, ReduceOp::bit_or, ReduceOp::max})
    EXPECT_TRUE(method_of(DType::boolean, op).op == NcclOp::max && !method_of(DType::boolean, op).pack.descending);
  EXPECT_EQ(method_of(DType::boolean, ReduceOp::bit_xor).way, NcclWay::gathered);
}

TEST(NcclMethods, OnlyWhatIsGatheredHasALimitOfRanks) {
  const auto can = [](OpKind kind, DType dtype, ReduceOp op, int ranks, std::int64_t staging) {
    return can_plan(signature_of(kind, dtype, op), ranks, staging);
  };
  constexpr std::int64_t small = 1 << 16, large = 4 << 20;
  for (const std::int64_t staging : {small, large}) {
    for (const OpKind kind : {OpKind::all_reduce, OpKind::reduce}) {
      EXPECT_TRUE(can(kind, DType::f32, ReduceOp::sum, 20'000, staging));
      EXPECT_TRUE(can(kind, DType::f16, ReduceOp::max, 20'000, staging));
      EXPECT_TRUE(can(kind, DType::i64, ReduceOp::bit_xor, 1024, staging));
      EXPECT_FALSE(can(kind, DType::i64, ReduceOp::bit_xor, 1025, staging));
      EXPECT_FALSE(can(kind, DType::f32, ReduceOp::product, 1025, staging)) << "gathered while a rank has joined";
    }
    EXPECT_TRUE(can(OpKind::broadcast, DType::f32, ReduceOp::sum, 20'000, staging));
  }
  EXPECT_TRUE(can(OpKind::all_gather, DType::f32, ReduceOp::sum, 20'000, large));
  EXPECT_TRUE(can(OpKind::all_gather, DType::f32, ReduceOp::sum, 4096, small));
  EXPECT_FALSE(can(OpKind::all_gather, DType::f32, ReduceOp::sum, 4097, small)) << "16 bytes for each rank";
  EXPECT_FALSE(can(OpKind::all_to_all, DType::f32, ReduceOp::sum, 2049, small));
}

/// One rank's bucket in memory that is never touched: only its addresses count.
struct Laid {
  Bucket bucket;
  std::uintptr_t next = 0;
};
std::byte* place(std::uintptr_t at) {
  return reinterpret_cast<std::byte*>(at);
}

constexpr std::uintptr_t staging_at = 1 << 20;

class NcclPlans : public ::testing::Test {
 protected:
  /// all_reduce of f32 tensors of these sizes, side by side or apart.
  NcclPlan plan(const std::vector<std::int64_t>& sizes, bool neighbours, std::int64_t staging = 1 << 16,
                std::int64_t direct = 4096) {
    bucket = {signature_of(OpKind::all_reduce, DType::f32), {}};
    std::uintptr_t at = 1 << 28;
    for (const std::int64_t size : sizes) {
      const Tensor tensor{place(at), Shape{size}, DType::f32, {DeviceKind::cuda, 0}};
      bucket.tensors.push_back({tensor, tensor});
      at += static_cast<std::uintptr_t>(size) * 4 + (neighbours ? 0 : 64);
    }
    method = nccl_method(bucket.signature, 2, 0, 2, false);
    return plan_nccl(bucket, 2, 0, method, {place(staging_at), staging}, direct);
  }
  Bucket bucket;
  NcclMethod method;
};

TEST_F(NcclPlans, SmallTensorsBecomeOneCallAndOnePack) {
  const NcclPlan made = plan({100, 0, 50, 1}, false);
  ASSERT_EQ(made.rounds.size(), 1u);
  ASSERT_EQ(made.rounds[0].calls.size(), 1u);
  EXPECT_EQ(made.rounds[0].calls[0].count, 151);
  EXPECT_EQ(made.rounds[0].calls[0].in, place(staging_at));
  EXPECT_EQ(made.rounds[0].pack.size(), 3u);
  EXPECT_EQ(made.rounds[0].unpack.size(), 3u);
}

TEST_F(NcclPlans, OneRankMovesNothing) {
  (void)plan({100, 50}, false);
  const NcclPlan made = plan_nccl(bucket, 1, 0, method, {place(staging_at), 1 << 16}, 4096);
  ASSERT_EQ(made.rounds.size(), 1u);
  EXPECT_EQ(made.rounds[0].calls.size(), 2u);
  EXPECT_TRUE(made.rounds[0].pack.empty() && made.rounds[0].unpack.empty());
}

TEST_F(NcclPlans, NeighboursInAnArenaAreNotMoved) {
  const NcclPlan made = plan({100, 0, 50, 1}, true);
  ASSERT_EQ(made.rounds.size(), 1u);
  EXPECT_EQ(made.rounds[0].calls.size(), 1u);
  EXPECT_EQ(made.rounds[0].calls[0].count, 151) << "the same call as where they are packed";
  EXPECT_EQ(made.rounds[0].calls[0].in, place(1 << 28));
  EXPECT_TRUE(made.rounds[0].pack.empty() && made.rounds[0].unpack.empty());
}

TEST_F(NcclPlans, LargeTensorsStayWhereTheyAreInOneGroup) {
  const NcclPlan made = plan({2000, 10, 20, 3000, 30}, false);
  ASSERT_EQ(made.rounds.size(), 1u);
  std::vector<std::int64_t> counts;
  for (const NcclCall& call : made.rounds[0].calls) counts.push_back(call.count);
  EXPECT_EQ(counts, (std::vector<std::int64_t>{2000, 30, 3000, 30}));
  EXPECT_EQ(made.rounds[0].calls[0].in, place(1 << 28));
  EXPECT_EQ(made.rounds[0].pack.size(), 2u) << "one that is alone between large ones is not packed either";
}

TEST_F(NcclPlans, WhatDoesNotFitIntoStagingTakesSeveralRounds) {
  const NcclPlan made = plan(std::vector<std::int64_t>(100, 200), false, 4096);
  EXPECT_EQ(made.rounds.size(), 20u) << "five of 800 bytes in 4 KiB";
  for (const NcclRound& round : made.rounds) EXPECT_EQ(round.calls.size(), 1u);
}

TEST(NcclPlansOfAllToAll, TakeSeveralRoundsWhereTheyAreInPlaceOnly) {
  for (const bool in_place : {false, true}) {
    Bucket bucket{signature_of(OpKind::all_to_all, DType::f32), {}};
    const Tensor in{place(1 << 28), Shape{10'000}, DType::f32, {DeviceKind::cuda, 0}};
    Tensor out = in;
    if (!in_place) out.data = place(1 << 29);
    bucket.tensors.push_back({in, out});
    const NcclMethod method = nccl_method(bucket.signature, 2, 0, 2, false);
    const NcclPlan made = plan_nccl(bucket, 2, 0, method, {place(staging_at), 16'384}, 4096);  // 2048 elements a rank
    std::vector<std::int64_t> sent;
    for (const NcclRound& round : made.rounds) {
      for (const NcclCall& call : round.calls) {
        if (call.kind == NcclCall::Kind::send) sent.push_back(call.count);
      }
    }
    EXPECT_EQ(sent, (std::vector<std::int64_t>{8192, 8192, 3616})) << "the same for a rank that is not in place";
    EXPECT_EQ(made.rounds.size(), in_place ? 3u : 1u);
  }
}

/// A random bucket as each rank has it: equal shapes, its own memory.
struct Drawn {
  std::vector<Bucket> ranks;
  NcclMethod method;
};

Drawn draw(std::mt19937_64& random, int ranks) {
  constexpr std::array kinds{OpKind::all_reduce,     OpKind::broadcast,  OpKind::reduce, OpKind::all_gather,
                             OpKind::reduce_scatter, OpKind::all_to_all, OpKind::gather, OpKind::scatter};
  Drawn drawn;
  const OpKind kind = kinds[random() % kinds.size()];
  const DType dtype = all_types[random() % all_types.size()];
  ReduceOp op = all_reduce_ops[random() % all_reduce_ops.size()];
  while (!reducible(op, dtype)) op = all_reduce_ops[random() % all_reduce_ops.size()];
  const std::size_t count = random() % 8;
  struct Sizes {
    std::int64_t rows, width;
    std::shared_ptr<const BlockRows> blocks;
  };
  std::vector<Sizes> sizes(count);
  for (Sizes& size : sizes) {
    size = {static_cast<std::int64_t>(random() % (random() % 4 == 0 ? 4000 : 60)),
            static_cast<std::int64_t>(1 + random() % 3), nullptr};
    if (!has_rows(kind) || random() % 2 == 0) continue;
    BlockRows rows;
    for (int i = 0; i < (kind == OpKind::all_to_all ? ranks * ranks : ranks); ++i)
      rows.push_back(static_cast<std::int64_t>(random() % 400));
    size.blocks = std::make_shared<const BlockRows>(std::move(rows));
  }
  std::vector<int> absent;
  if (random() % 4 == 0 && ranks > 1 && !has_rows(kind)) absent.push_back(0);  // the root is rank 1
  for (int rank = 0; rank < ranks; ++rank) {
    Bucket bucket{signature_of(kind, dtype, op), {}, absent};
    bucket.divide_by = divisor_of(bucket.signature, ranks, absent.size());
    bucket.signature.root = ranks > 1 ? 1 : 0;
    std::uintptr_t at = 1 << 28;
    const auto take = [&](const Shape& shape, bool apart) {
      at += apart ? 64 : 0;
      const Tensor tensor{place(at), shape, dtype, {DeviceKind::cuda, rank}};
      at += tensor.bytes();
      return tensor;
    };
    const bool apart = random() % 2 == 0;
    for (const Sizes& size : sizes) {
      const auto rows_between = [&](int from, int to) {
        if (!size.blocks) return size.rows;
        return (*size.blocks)[static_cast<std::size_t>(kind == OpKind::all_to_all ? from * ranks + to : from)];
      };
      std::int64_t in = size.rows, out = size.rows;
      if (has_rows(kind)) {
        in = out = 0;
        for (int other = 0; other < ranks; ++other) {
          in += kind == OpKind::all_to_all ? rows_between(rank, other) : other == rank ? rows_between(rank, rank) : 0;
          out += rows_between(other, rank);
        }
      }
      if (kind == OpKind::reduce_scatter || kind == OpKind::scatter) out = rows_of_rank(size.rows, ranks, rank).count();
      const Tensor input = take(Shape{in, size.width}, apart);
      const bool in_place = (!has_blocks(kind) || (kind == OpKind::all_to_all && !size.blocks)) && random() % 2 == 0;
      bucket.tensors.push_back({input, in_place ? input : take(Shape{out, size.width}, apart), size.blocks});
    }
    drawn.ranks.push_back(std::move(bucket));
  }
  const Bucket& first = drawn.ranks[0];
  drawn.method = nccl_method(first.signature, ranks, absent.size(), first.divide_by, random() % 2 == 0);
  return drawn;
}

/// Whether calls of a round, which run at the same time, receive into memory that others send from.
bool receives_into_what_is_sent(const NcclRound& round) {
  const auto end = [](const std::byte* begin, const NcclCall& call) {
    return begin + static_cast<std::size_t>(call.count) * size_of(call.type);
  };
  for (const NcclCall& sent : round.calls) {
    if (sent.kind != NcclCall::Kind::send) continue;
    for (const NcclCall& received : round.calls) {
      if (received.kind == NcclCall::Kind::receive && received.out < end(sent.in, sent) &&
          sent.in < end(received.out, received))
        return true;
    }
  }
  return false;
}

/// Whatever the bucket: the ranks' calls fit together, wherever their tensors are, and staging is not left.
TEST(NcclPlansOfAllRanks, FitTogether) {
  std::mt19937_64 random(1);
  for (int turn = 0; turn < 20'000; ++turn) {
    const int ranks = 1 + static_cast<int>(random() % 5);
    const Drawn drawn = draw(random, ranks);
    const NcclStaging staging{place(staging_at), static_cast<std::int64_t>(1 + random() % 8) * 4096};
    std::vector<NcclPlan> plans;
    for (int rank = 0; rank < ranks; ++rank) {
      plans.push_back(plan_nccl(drawn.ranks[static_cast<std::size_t>(rank)], ranks, rank, drawn.method, staging, 4096));
    }
    SCOPED_TRACE(fmt::format("turn {}: {} of {} tensors, {} ranks", turn, to_string(drawn.ranks[0].signature),
                             drawn.ranks[0].tensors.size(), ranks));
    std::map<std::pair<int, int>, std::vector<std::int64_t>> sent, received;
    std::vector<std::vector<std::string>> collectives(static_cast<std::size_t>(ranks));
    for (int rank = 0; rank < ranks; ++rank) {
      for (std::size_t r = 0; r < plans[static_cast<std::size_t>(rank)].rounds.size(); ++r) {
        const NcclRound& round = plans[static_cast<std::size_t>(rank)].rounds[r];
        ASSERT_FALSE(receives_into_what_is_sent(round));
        for (const NcclCall& call : round.calls) {
          ASSERT_GT(call.count, 0);
          if (call.kind == NcclCall::Kind::send)
            sent[{rank, call.peer}].push_back(call.count);
          else if (call.kind == NcclCall::Kind::receive)
            received[{call.peer, rank}].push_back(call.count);
          else
            collectives[static_cast<std::size_t>(rank)].push_back(fmt::format(
                "{} {} {} {} {}", r, static_cast<int>(call.kind), call.count, to_string(call.type), call.peer));
        }
        for (const auto* items : {&round.pack, &round.unpack}) {
          const Conversion& how = items == &round.pack ? drawn.method.pack : drawn.method.unpack;
          for (const PackItem& item : *items) {
            ASSERT_GT(item.count, 0);
            const auto check = [&](const std::byte* data, DType dtype) {
              const auto begin = reinterpret_cast<std::uintptr_t>(data),
                         end = begin + static_cast<std::uintptr_t>(item.count) * size_of(dtype);
              ASSERT_TRUE(begin >= (1 << 28) ||
                          (begin >= staging_at && end <= staging_at + static_cast<std::uintptr_t>(staging.bytes)));
            };
            check(item.from, how.from);
            check(item.to, how.to);
          }
        }
      }
    }
    for (const auto& other : collectives) ASSERT_EQ(other, collectives[0]);
    ASSERT_EQ(sent, received);
  }
}

}  // namespace
}  // namespace kolo
