#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <new>
#include <string>
#include <vector>

#include <kolo/session.h>

#include "runtime/types/rank_set.h"
#include "tests/support/thread_ranks.h"

namespace kolo::testing {

// Programs over blocks that differ from rank to rank, in closed form, for ranks as threads and as processes.

/// Rows of rank `from` for rank `to` in a round: some of them none.
inline std::int64_t rows_for(int round, int from, int to) {
  return (round + 2 * from + 3 * to) % 4;
}

inline std::int32_t mark(int from, int to, std::int64_t row) {
  return static_cast<std::int32_t>(10000 * from + 100 * to + row);
}

/// Blocks that rank `from` has for rank `to`, with rows of two elements.
inline void append_block(std::vector<std::int32_t>& values, int round, int from, int to) {
  for (std::int64_t row = 0; row < rows_for(round, from, to); ++row)
    values.insert(values.end(), 2, mark(from, to, row));
}

inline Tensor rows_of_two(std::vector<std::int32_t>& values) {
  return view(values.data(), Shape{static_cast<std::int64_t>(values.size() / 2), 2});
}

inline void gather_uneven_blocks(Session& session) {
  const int n = session.size(), rank = session.rank();
  for (int round = 0; round < 6; ++round) {
    std::vector<std::int32_t> in, wanted;
    append_block(in, round, rank, 0);
    BlockRows wanted_rows;
    for (int from = 0; from < n; ++from) {
      append_block(wanted, round, from, 0);
      wanted_rows.push_back(rows_for(round, from, 0));
    }
    std::vector<std::int32_t> out(wanted.size()), made;
    BlockRows rows;
    session.all_gather("uneven", rows_of_two(in), rows_of_two(out), {.rows = &rows});
    EXPECT_EQ(out, wanted) << "round " << round;
    EXPECT_EQ(rows, wanted_rows);
    const auto allocate = [&](const Shape& shape) {
      made.resize(static_cast<std::size_t>(shape.elements()));
      return view(made.data(), shape);
    };
    const bool allocates = (rank + round) % 2 == 0;  // some ranks know how much comes
    std::vector<std::int32_t> known(wanted.size());
    session.all_gather("mixed", rows_of_two(in), allocates ? Tensor{} : rows_of_two(known),
                       {.allocate = allocates ? Allocate(allocate) : Allocate()});
    EXPECT_EQ(allocates ? made : known, wanted);
    made.clear();
    const int root = round % n;
    session.gather("uneven gather", rows_of_two(in), {}, {.root = root, .allocate = allocate, .rows = &rows});
    EXPECT_EQ(made, rank == root ? wanted : std::vector<std::int32_t>());
  }
}

inline void exchange_uneven_blocks(Session& session) {
  const int n = session.size(), rank = session.rank();
  for (int round = 0; round < 6; ++round) {
    std::vector<std::int32_t> in, wanted;
    std::vector<std::int64_t> splits, wanted_rows;
    for (int peer = 0; peer < n; ++peer) {
      append_block(in, round, rank, peer);
      append_block(wanted, round, peer, rank);
      splits.push_back(rows_for(round, rank, peer));
      wanted_rows.push_back(rows_for(round, peer, rank));
    }
    std::vector<std::int32_t> out(wanted.size()), made;
    BlockRows rows;
    session.all_to_all("uneven", rows_of_two(in), rows_of_two(out), {.splits = splits, .rows = &rows});
    EXPECT_EQ(out, wanted) << "round " << round;
    EXPECT_EQ(rows, wanted_rows);
    session.all_to_all("made", rows_of_two(in), {}, {.splits = splits, .allocate = [&](const Shape& shape) {
                                                       made.resize(static_cast<std::size_t>(shape.elements()));
                                                       return view(made.data(), shape);
                                                     }});
    EXPECT_EQ(made, wanted);
  }
}

/// Several in flight at once share buckets although their sizes change; names are announced in full once.
inline void fuse_uneven_blocks(Session& session) {
  const int n = session.size(), rank = session.rank();
  const auto step = [&](int round) {
    std::vector<std::vector<std::int32_t>> in(4), out(4), wanted(4);
    std::vector<Handle> handles;
    for (int t = 0; t < 4; ++t) {
      const auto i = static_cast<std::size_t>(t);
      append_block(in[i], round + t, rank, 0);
      for (int from = 0; from < n; ++from) append_block(wanted[i], round + t, from, 0);
      out[i].resize(wanted[i].size());
      handles.push_back(session.all_gather_async("fused" + std::to_string(t), rows_of_two(in[i]), rows_of_two(out[i])));
    }
    for (Handle& handle : handles) handle.wait();
    EXPECT_EQ(out == wanted, true) << "round " << round;
  };
  for (int round = 0; round < 3; ++round) step(round);
  session.barrier();
  const SessionStats before = session.stats();
  for (int round = 0; round < 8; ++round) step(round);
  const SessionStats after = session.stats();
  session.barrier();
  EXPECT_EQ(after.buckets - before.buckets, 8u);
  EXPECT_EQ(after.full_announcements, before.full_announcements);
}

inline void refuse_blocks_that_do_not_fit(Session& session) {
  const int n = session.size(), rank = session.rank();
  if (n == 1) return;
  const std::string last = "rank " + std::to_string(n - 1);
  std::vector<std::int32_t> in(2), out(static_cast<std::size_t>(2 * n + (rank == n - 1 ? 2 : 0)));
  EXPECT_EQ(error_text([&] { session.all_gather("x", rows_of_two(in), rows_of_two(out)); }, ErrorCode::mismatch),
            "all_gather 'x' in group world: outputs do not fit what the ranks send (" + last + ": " +
                std::to_string(n + 1) + " rows for " + std::to_string(n) +
                "); pass outputs of that many rows, or let them be allocated");
  for (int failing = 0; failing < n; ++failing) {
    const auto allocate = [&](const Shape& shape) {
      if (rank == failing) throw std::bad_alloc();
      out.resize(static_cast<std::size_t>(shape.elements()));
      return view(out.data(), shape);
    };
    EXPECT_EQ(
        error_text([&] { session.all_gather("x", rows_of_two(in), {}, {.allocate = allocate}); }, ErrorCode::backend),
        fmt::format("all_gather 'x' in group world: rank {0}: the output i32[{1},2] could not be allocated on rank {0} "
                    "(std::bad_alloc); free memory there, or pass an output",
                    failing, n));
  }
  std::vector<std::int64_t> splits(static_cast<std::size_t>(n), 0), of_last = splits;
  of_last[0] = 2;
  splits[0] = rank == n - 1 ? 2 : 1;
  EXPECT_EQ(error_text([&] { session.all_to_all("x", rows_of_two(in), rows_of_two(out), {.splits = splits}); },
                       ErrorCode::invalid_argument),
            "all_to_all 'x' in group world: " + last + ": the splits " + to_string(Shape(of_last)) +
                " do not cut the 1 row of the input (none may be negative, their sum must be that); pass fitting ones");
  std::vector<std::int32_t> wide(3);
  const Tensor odd = rank == n - 1 ? view(wide.data(), Shape{1, 3}) : rows_of_two(in);
  const auto text =
      error_text([&] { session.all_gather("x", odd, {}, {.allocate = [](const Shape&) { return Tensor{}; }}); },
                 ErrorCode::mismatch);
  EXPECT_EQ(text, "all_gather 'x' in group world: ranks submitted different shapes (" +
                      to_string(RankSet::range(0, n - 1)) + ": i32[*,2]; " + last +
                      ": i32[*,3]); submit the same shape on every rank");
  std::vector<std::int32_t> room(static_cast<std::size_t>(2 * n));
  const int wrong = rank == 0 ? n - 1 : 0;  // all work in place, the first and the last not in their blocks
  const int row = rank == 0 || rank == n - 1 ? wrong : rank;
  const auto overlap = error_text(
      [&] {
        session.all_gather("x", view(room.data() + 2 * row, Shape{1, 2}), rows_of_two(room));
      },
      ErrorCode::invalid_argument);
  EXPECT_EQ(overlap, "all_gather 'x' in group world: on rank 0 input and output overlap, and the input, at row " +
                         std::to_string(n - 1) +
                         " of the output, is not that rank's block, at row 0; pass that block, or two tensors apart");
  out.assign(static_cast<std::size_t>(2 * n), 0);
  session.all_gather("x", rows_of_two(in), rows_of_two(out));
}

inline void run_uneven_blocks(Session& session) {
  gather_uneven_blocks(session);
  exchange_uneven_blocks(session);
  fuse_uneven_blocks(session);
  refuse_blocks_that_do_not_fit(session);
}

}  // namespace kolo::testing
