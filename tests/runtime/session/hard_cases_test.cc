// What is known to go wrong in other collective runtimes, one test each; ranks as threads.

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/thread_ranks.h"

namespace kolo {
namespace {

using namespace std::chrono_literals;
using testing::error_text;
using testing::run_ranks;

class HardCasesTest : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, HardCasesTest, ::testing::Values(2, 3, 4));

/// Multiplying by 1/n and truncating gives 0 here: 49 * (1.0 / 49) is less than 1.
TEST(HardCases, IntegersAverageExactlyOver49Ranks) {
  run_ranks(49, [](Session& session) {
    std::vector<std::int32_t> ones(100, 1), negative(3, session.rank() == 0 ? -51 : -1);
    session.all_reduce("ones", view(ones), {.op = ReduceOp::average});
    EXPECT_EQ(ones, std::vector<std::int32_t>(100, 1));
    session.all_reduce("negative", view(negative), {.op = ReduceOp::average});
    EXPECT_EQ(negative, std::vector<std::int32_t>(3, -2)) << "-99 / 49, truncated toward zero";
  });
}

/// Rank 0 has joined; the others hold 2, or -2.
TEST_P(HardCasesTest, JoinedRanksDoNotCountForAnyOp) {
  run_ranks(GetParam(), [](Session& session) {
    if (session.rank() != 0) {
      const float active = static_cast<float>(session.size() - 1);
      const auto reduced = [&](ReduceOp op, float value) {
        session.all_reduce("x", view_scalar(value), {.op = op});
        return value;
      };
      (void)reduced(ReduceOp::sum, 0);  // until rank 0 has joined
      EXPECT_EQ(reduced(ReduceOp::product, 2), std::pow(2.0f, active));
      EXPECT_EQ(reduced(ReduceOp::min, 2), 2);
      EXPECT_EQ(reduced(ReduceOp::max, -2), -2);
      EXPECT_EQ(reduced(ReduceOp::average, 2), 2);
      session.barrier();
      std::vector<float> all(static_cast<std::size_t>(session.size() - 1)), mine(1, 5);
      session.all_gather("rows", view(mine), view(all));
      EXPECT_EQ(all, std::vector<float>(all.size(), 5));
    }
    EXPECT_GT(session.join(), 0);
    session.barrier();
  });
}

TEST_P(HardCasesTest, ANameServesOneOperationAfterTheOther) {
  run_ranks(GetParam(), [](Session& session) {
    const int n = session.size();
    for (int round = 0; round < 4; ++round) {
      std::vector<float> values(static_cast<std::size_t>(n * (1 + round)), 1),
          part(static_cast<std::size_t>(1 + round));
      session.all_reduce("x", view(values));
      EXPECT_EQ(values, std::vector<float>(values.size(), static_cast<float>(n)));
      session.reduce_scatter("x", view(values), view(part));
      EXPECT_EQ(part, std::vector<float>(part.size(), static_cast<float>(n * n)));
      std::vector<std::int64_t> whole(static_cast<std::size_t>(n), session.rank());
      session.broadcast("x", view(whole), {.root = n - 1});
      session.all_to_all("x", view(whole), view(whole));
      std::vector<std::int64_t> one(1, session.rank());
      session.all_gather("x", view(one), view(whole));
      for (int r = 0; r < n; ++r) EXPECT_EQ(whole[static_cast<std::size_t>(r)], r);
    }
  });
}

/// The tensors before a duplicate must not stay behind, to run when others submit their names.
TEST_P(HardCasesTest, ADuplicateInAGroupedSubmissionLeavesNothing) {
  run_ranks(GetParam(), [](Session& session) {
    std::vector<float> a(3, 1), b(4, 1);
    const std::vector<NamedTensor> twice{{"a", view(a), view(a)}, {"b", view(b), view(b)}, {"b", view(b), view(b)}};
    EXPECT_NE(error_text([&] { (void)session.grouped_all_reduce_async("g", twice); }, ErrorCode::in_flight), "");
    session.barrier();
    EXPECT_EQ(a, std::vector<float>(3, 1)) << "nothing ran";
    session.grouped_all_reduce_async("g", std::span(twice).first(2)).wait();
    EXPECT_EQ(b, std::vector<float>(4, static_cast<float>(session.size())));
  });
}

/// A group on one rank does not match the same tensors alone on another, nor another group.
TEST_P(HardCasesTest, GroupedSubmissionsAreTheSameOnEveryRankOrAnError) {
  run_ranks(GetParam(), [](Session& session) {
    std::vector<float> a(3, 1), b(4, 1);
    const std::vector<NamedTensor> both{{"a", view(a), view(a)}, {"b", view(b), view(b)}};
    for (int step = 0; step < 3; ++step) session.grouped_all_reduce_async("g", both).wait();
    const auto call = [&] {
      if (session.rank() == 0) session.all_reduce("g", view(a));
      if (session.rank() != 0) session.grouped_all_reduce_async("g", both).wait();
    };
    EXPECT_NE(
        error_text(call, ErrorCode::mismatch).find("ranks submitted different numbers of tensors (rank 0: one; rank"),
        std::string::npos);
    session.grouped_all_reduce_async("g", both).wait();
  });
}

/// Memory that cannot be had on one rank is an error of all, and nobody is left in the middle of a transfer.
TEST_P(HardCasesTest, AnAllocationThatFailsOnOneRankFailsOnAll) {
  run_ranks(GetParam(), [](Session& session) {
    std::vector<float> mine(2, 1), made;
    for (int failing = 0; failing < session.size(); ++failing) {
      const auto allocate = [&](const Shape& shape) {
        if (session.rank() == failing) throw std::bad_alloc();
        made.resize(static_cast<std::size_t>(shape.elements()));
        return view(made.data(), shape);
      };
      const auto text =
          error_text([&] { session.all_gather("x", view(mine), {}, {.allocate = allocate}); }, ErrorCode::backend);
      EXPECT_EQ(text, "all_gather 'x' in group world: rank " + std::to_string(failing) + ": the output f32[" +
                          std::to_string(2 * session.size()) + "] could not be allocated on rank " +
                          std::to_string(failing) + " (std::bad_alloc); free memory there, or pass an output");
    }
    session.all_gather("x", view(mine), {}, {.allocate = [&](const Shape& shape) {
                         made.resize(static_cast<std::size_t>(shape.elements()));
                         return view(made.data(), shape);
                       }});
    EXPECT_EQ(made, std::vector<float>(static_cast<std::size_t>(2 * session.size()), 1));
  });
}

/// A bad argument on one rank is every rank's error, at once.
TEST_P(HardCasesTest, ABadArgumentOnOneRankStallsNobody) {
  run_ranks(GetParam(), [](Session& session) {
    const bool odd = session.rank() == 1;
    std::vector<float> values(3 * static_cast<std::size_t>(session.size()));
    const auto start = std::chrono::steady_clock::now();
    const std::vector<std::int64_t> splits(odd ? 1 : 0, 3);
    EXPECT_NE(error_text([&] { session.all_to_all("s", view(values), view(values), {.splits = splits}); },
                         ErrorCode::invalid_argument),
              "");
    EXPECT_NE(
        error_text([&] { session.broadcast("r", view(values), {.root = odd ? 99 : 0}); }, ErrorCode::invalid_argument),
        "");
    EXPECT_NE(error_text(
                  [&] {
                    session.all_reduce("n", odd ? Tensor{nullptr, {3}} : view(values.data(), {3}));
                  },
                  ErrorCode::invalid_argument),
              "");
    EXPECT_LT(std::chrono::steady_clock::now() - start, 5s);
  });
}

/// A group whose member sleeps delays no other group of the ranks that are awake.
TEST(HardCases, ASleepingMemberDelaysItsOwnGroupOnly) {
  run_ranks(3, [](Session& session) {
    const Group with_sleeper = session.new_group(std::vector<int>{0, 2});
    const Group awake = session.new_group(std::vector<int>{0, 1});
    float value = 1;
    if (session.rank() == 2) std::this_thread::sleep_for(1s);
    if (session.rank() == 0) {
      float late = 1;
      Handle handle = session.all_reduce_async("x", view_scalar(late), {.group = with_sleeper});
      const auto start = std::chrono::steady_clock::now();
      for (int i = 0; i < 100; ++i) session.all_reduce("x", view_scalar(value), {.group = awake});
      EXPECT_LT(std::chrono::steady_clock::now() - start, 900ms);
      handle.wait();
      EXPECT_EQ(late, 2);
    } else if (session.rank() == 1) {
      for (int i = 0; i < 100; ++i) session.all_reduce("x", view_scalar(value), {.group = awake});
    } else {
      session.all_reduce("x", view_scalar(value), {.group = with_sleeper});
    }
  });
}

}  // namespace
}  // namespace kolo
