#pragma once

#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

#include <kolo/session.h>

#include "runtime/types/rank_set.h"
#include "tests/support/thread_ranks.h"

namespace kolo::testing {

/// Programs over the collectives of a group with expectations in closed form, for ranks as threads and as processes.
/// Every rank of a session runs the same one; only members of the group call its operations. Rank r of the group has r
/// in what it sends.

using Numbers = std::vector<std::int32_t>;

/// `rows` rows of two: number `i` of rank `rank` is 1000 * rank + i.
inline Numbers numbers_of(int rank, std::int64_t rows) {
  Numbers numbers(static_cast<std::size_t>(rows) * 2);
  std::iota(numbers.begin(), numbers.end(), 1000 * rank);
  return numbers;
}
inline Tensor rows_of(Numbers& numbers) {
  return view(numbers.data(), Shape{static_cast<std::int64_t>(numbers.size()) / 2, 2});
}
inline Numbers part(const Numbers& numbers, const RowRange& rows) {
  return {numbers.begin() + rows.begin * 2, numbers.begin() + rows.end * 2};
}

/// Which rank of a group this is; for the world, too.
struct Place {
  Place(Session& session, const Group& group)
      : rank((group.info() ? group : session.world()).info()->rank),
        size((group.info() ? group : session.world()).info()->size()) {}
  int rank;
  int size;
};

inline void reduce_to_every_root(Session& session, const Group& group) {
  const auto [rank, n] = Place(session, group);
  for (int root = 0; root < n; ++root) {
    for (const std::int64_t rows : {0, 1, 5, 3000}) {
      const Numbers before = numbers_of(rank, rows);
      Numbers values = before, expected = before;
      for (std::size_t i = 0; i < expected.size(); ++i) expected[i] = n * static_cast<int>(i) + 1000 * n * (n - 1) / 2;
      session.reduce("reduced", rows_of(values), {.root = root, .group = group});
      EXPECT_EQ(values, rank == root ? expected : before) << "root " << root << ", " << rows << " rows";

      values = before;
      Numbers out(rank == root ? values.size() : 0);
      session
          .reduce_async(session.declare("reduced apart"), rows_of(values), rank == root ? rows_of(out) : Tensor{},
                        {.op = ReduceOp::max, .root = root, .group = group})
          .wait();
      EXPECT_EQ(values, before);
      EXPECT_EQ(out, rank == root ? numbers_of(n - 1, rows) : Numbers{});
    }
  }
}

inline void gather_blocks(Session& session, const Group& group) {
  const auto [rank, n] = Place(session, group);
  for (const std::int64_t rows : {0, 1, 5, 3000}) {
    Numbers mine = numbers_of(rank, rows), expected;
    for (int r = 0; r < n; ++r) {
      const Numbers block = numbers_of(r, rows);
      expected.insert(expected.end(), block.begin(), block.end());
    }
    Numbers all(expected.size());
    session.all_gather("gathered", rows_of(mine), rows_of(all), {.group = group});
    EXPECT_EQ(all, expected);
    EXPECT_EQ(mine, numbers_of(rank, rows));

    Numbers in_place(expected.size());
    const RowRange block{rank * rows, (rank + 1) * rows};
    std::copy(mine.begin(), mine.end(), in_place.begin() + block.begin * 2);
    const Tensor own = view(in_place.data() + block.begin * 2, Shape{rows, 2});
    session.all_gather_async(session.declare("gathered in place"), own, rows_of(in_place), {.group = group}).wait();
    EXPECT_EQ(in_place, expected);

    for (int root = 0; root < n; ++root) {
      Numbers at_root(rank == root ? expected.size() : 0);
      session.gather("gathered at root", rows_of(mine), rank == root ? rows_of(at_root) : Tensor{},
                     {.root = root, .group = group});
      EXPECT_EQ(at_root, rank == root ? expected : Numbers{});
    }
  }
}

inline void deal_out_rows(Session& session, const Group& group) {
  const auto [rank, n] = Place(session, group);
  for (const std::int64_t rows : {0, 1, 2, 3, 7, 3001}) {
    const RowRange own = rows_of_rank(rows, n, rank);
    Numbers whole = numbers_of(rank, rows), sum = whole;
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] = n * static_cast<int>(i) + 1000 * n * (n - 1) / 2;
    Numbers mine(static_cast<std::size_t>(own.count()) * 2);
    session.reduce_scatter("dealt sum", rows_of(whole), rows_of(mine), {.group = group});
    EXPECT_EQ(mine, part(sum, own)) << rows << " rows";
    EXPECT_EQ(whole, numbers_of(rank, rows));

    const Tensor in_place = view(whole.data() + own.begin * 2, Shape{own.count(), 2});
    session.reduce_scatter_async("dealt average", rows_of(whole), in_place, {.op = ReduceOp::average, .group = group})
        .wait();
    for (std::int64_t i = 0; i < rows * 2; ++i) {
      const bool reduced = i >= own.begin * 2 && i < own.end * 2;
      const int expected = static_cast<int>(i) + (reduced ? 1000 * (n - 1) / 2 : 1000 * rank);
      ASSERT_EQ(whole[static_cast<std::size_t>(i)], expected) << i << " of " << rows << " rows";
    }

    for (int root = 0; root < n; ++root) {
      Numbers source = rank == root ? numbers_of(root, rows) : Numbers{};
      const Tensor described{.data = source.data(), .shape = {rows, 2}, .dtype = DType::i32};
      session.scatter("dealt", described, rows_of(mine), {.root = root, .group = group});
      EXPECT_EQ(mine, part(numbers_of(root, rows), own));
    }
  }
}

inline void exchange_blocks(Session& session, const Group& group) {
  const auto [rank, n] = Place(session, group);
  for (const std::int64_t rows : {0, 1, 5, 1001}) {
    Numbers in = numbers_of(rank, rows * n), expected;
    for (int r = 0; r < n; ++r) {
      const Numbers block = part(numbers_of(r, rows * n), {rank * rows, (rank + 1) * rows});
      expected.insert(expected.end(), block.begin(), block.end());
    }
    Numbers out(in.size());
    session.all_to_all("exchanged", rows_of(in), rows_of(out), {.group = group});
    EXPECT_EQ(out, expected);
    EXPECT_EQ(in, numbers_of(rank, rows * n));
    session.all_to_all("exchanged in place", rows_of(in), rows_of(in), {.group = group});
    EXPECT_EQ(in, expected);
  }
}

/// Many tensors of every kind in flight at once, step after step: they share buckets once they are planned.
inline void share_buckets(Session& session, const Group& group) {
  const auto [rank, n] = Place(session, group);
  constexpr int tensors = 12, steps = 6;
  for (int step = 0; step < steps; ++step) {
    std::vector<Numbers> in(tensors), out(tensors), wanted(tensors);
    std::vector<Handle> handles;
    for (int t = 0; t < tensors; ++t) {
      const auto i = static_cast<std::size_t>(t);
      const std::string name = "shared" + std::to_string(t);
      const std::int64_t rows = 1 + t * t;
      const RowRange own = rows_of_rank(rows, n, rank);
      if (t % 3 == 0) {
        in[i] = numbers_of(rank, rows);
        for (int r = 0; r < n; ++r) {
          const Numbers block = numbers_of(r, rows);
          wanted[i].insert(wanted[i].end(), block.begin(), block.end());
        }
        out[i].resize(wanted[i].size());
        handles.push_back(session.all_gather_async(name, rows_of(in[i]), rows_of(out[i]), {.group = group}));
      } else if (t % 3 == 1) {
        in[i] = numbers_of(rank, rows);
        wanted[i] = part(numbers_of(n - 1, rows), own);
        out[i].resize(wanted[i].size());
        handles.push_back(
            session.reduce_scatter_async(name, rows_of(in[i]), rows_of(out[i]), {.op = ReduceOp::max, .group = group}));
      } else {
        out[i] = numbers_of(rank, rows);
        wanted[i] = numbers_of(0, rows);
        handles.push_back(session.broadcast_async(name, rows_of(out[i]), {.root = 0, .group = group}));
      }
    }
    for (Handle& handle : handles) handle.wait();
    EXPECT_EQ(out == wanted, true) << "step " << step;
  }
}

inline void reduce_bits_and_truths(Session& session, const Group& group) {
  const auto [rank, n] = Place(session, group);
  const auto bit = static_cast<std::uint64_t>(1) << rank;
  const auto reduced = [&](ReduceOp op, std::uint64_t value) {
    session.all_reduce("bits", view_scalar(value), {.op = op, .group = group});
    return value;
  };
  EXPECT_EQ(reduced(ReduceOp::bit_or, bit), (std::uint64_t{1} << n) - 1);
  EXPECT_EQ(reduced(ReduceOp::bit_and, ~bit), ~((std::uint64_t{1} << n) - 1));
  EXPECT_EQ(reduced(ReduceOp::bit_xor, bit | 1), ((std::uint64_t{1} << n) - 2) | static_cast<std::uint64_t>(n % 2));
  EXPECT_EQ(reduced(ReduceOp::logical_and, bit), 1u);
  EXPECT_EQ(reduced(ReduceOp::logical_and, rank == n - 1 ? 0 : 5), 0u);
  EXPECT_EQ(reduced(ReduceOp::logical_or, rank == n - 1 ? 5 : 0), 1u);
  bool any = rank == 0, all = rank != 0;
  session.all_reduce("any", view_scalar(any), {.op = ReduceOp::logical_or, .group = group});
  session.all_reduce("all", view_scalar(all), {.op = ReduceOp::min, .group = group});
  EXPECT_TRUE(any);
  EXPECT_FALSE(all);
}

/// A wrong call of the group's last rank is everybody's error, and what follows works.
inline void agree_on_errors(Session& session, const Group& group) {
  const auto [rank, n] = Place(session, group);
  const GroupInfo& info = *(group.info() ? group : session.world()).info();
  RankSet everybody;
  for (int member : info.ranks) everybody.add(member);
  const std::string place = " 'x' in group " + info.name + ": ";
  const std::string last = "rank " + std::to_string(info.ranks.back()) + ": ";
  const std::string ranks = std::to_string(n);
  Numbers in = numbers_of(rank, n), out(in.size() * static_cast<std::size_t>(n));
  if (n > 1) {
    Tensor wrong_on_last = rows_of(out);
    if (rank == n - 1) wrong_on_last.shape = Shape{1, 2};
    EXPECT_EQ(
        error_text([&] { session.all_gather("x", rows_of(in), wrong_on_last, {.group = group}); }, ErrorCode::mismatch),
        "all_gather" + place + "outputs do not fit what the ranks send (" + last + "1 row for " +
            std::to_string(n * n) + "); pass outputs of that many rows, or let them be allocated");
    const int root = rank == n - 1 ? 0 : 1;
    const auto text =
        error_text([&] { session.reduce("x", rows_of(in), {.root = root, .group = group}); }, ErrorCode::mismatch);
    EXPECT_EQ(text.find("reduce" + place + "ranks submitted different roots (rank"), 0u) << text;
    EXPECT_NE(text.find(last + "root 0); name the same root on every rank"), std::string::npos) << text;
  }
  EXPECT_EQ(error_text([&] { session.scatter("x", rows_of(in), rows_of(in), {.root = n, .group = group}); },
                       ErrorCode::invalid_argument),
            "scatter" + place + to_string(everybody) + ": root " + ranks + " is not a rank of the group (it has " +
                ranks + ", from 0)");
  bool flag = true;
  EXPECT_EQ(
      error_text([&] { session.all_reduce("x", view_scalar(flag), {.group = group}); }, ErrorCode::invalid_argument),
      "all_reduce" + place + to_string(everybody) +
          ": sum of bool is not defined; use logical_or or logical_and, or convert to an integer type");
  session.all_gather("x", rows_of(in), rows_of(out), {.group = group});
  EXPECT_EQ(part(out, {0, n}), numbers_of(0, n));
}

inline void run_collectives(Session& session, const Group& group = {}) {
  if (group.info() && !group.info()->member()) return;
  reduce_to_every_root(session, group);
  gather_blocks(session, group);
  deal_out_rows(session, group);
  exchange_blocks(session, group);
  share_buckets(session, group);
  reduce_bits_and_truths(session, group);
  agree_on_errors(session, group);
}

/// In the group of every second rank from the last one down, and in that of the others: roots are ranks of the group.
inline void run_collectives_in_groups(Session& session) {
  std::vector<int> odd, even;
  for (int rank = 0; rank < session.size(); ++rank) ((session.size() - rank) % 2 == 1 ? odd : even).push_back(rank);
  const Group first = session.new_group(odd);
  run_collectives(session, first);
  if (even.empty()) return;
  run_collectives(session, session.new_group(even));
}

}  // namespace kolo::testing
