#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include <kolo/session.h>

#include "tests/support/thread_ranks.h"

namespace kolo::testing {

// Programs that send and receive, in closed form, for ranks as threads and as processes.

/// Each rank to the next and from the one before, blocking on even ranks first, then everybody at once.
inline void pass_around(Session& session) {
  const int n = session.size(), rank = session.rank();
  if (n == 1) return;
  const int next = (rank + 1) % n, before = (rank + n - 1) % n;
  for (int round = 0; round < 3; ++round) {
    std::vector<std::int64_t> mine(static_cast<std::size_t>(1 + 10000 * round), rank), theirs(mine.size());
    Handle sent = session.send_async("around", view(mine), next);
    session.recv("around", view(theirs), before);
    sent.wait();
    EXPECT_EQ(theirs, std::vector<std::int64_t>(theirs.size(), before));
    EXPECT_EQ(mine, std::vector<std::int64_t>(mine.size(), rank));
  }
  if (n % 2 == 0) {
    std::vector<float> value(3, static_cast<float>(rank));
    if (rank % 2 == 0) {
      session.send("pair", view(value), rank + 1);
      session.recv("pair", view(value), rank + 1);
    } else {
      std::vector<float> got(3);
      session.recv("pair", view(got), rank - 1);
      session.send("pair", view(value), rank - 1);
      value = got;
    }
    EXPECT_EQ(value, std::vector<float>(3, static_cast<float>(rank ^ 1)));
  }
}

/// Several in flight under one name match in order; other shapes and types under the same name, too.
inline void first_in_first_out(Session& session) {
  const int n = session.size(), rank = session.rank();
  if (n == 1) return;
  constexpr int count = 20;
  std::vector<std::vector<std::int32_t>> values(count);
  std::vector<Handle> handles;
  for (int i = 0; i < count; ++i) {
    auto& value = values[static_cast<std::size_t>(i)];
    value.assign(static_cast<std::size_t>(1 + i % 3), rank == 0 ? i : -1);
    if (rank == 0) handles.push_back(session.send_async("fifo", view(value), n - 1));
    if (rank == n - 1) handles.push_back(session.recv_async("fifo", view(value), 0));
  }
  for (std::size_t i = handles.size(); i-- > 0;) handles[i].wait();
  for (int i = 0; i < count && rank == n - 1; ++i) EXPECT_EQ(values[static_cast<std::size_t>(i)][0], i);
}

/// In a group ranks are counted as there, and the same name may be in flight in the world.
inline void send_in_a_group(Session& session) {
  const int n = session.size();
  const Group group = session.split(0, -session.rank());  // in reverse
  EXPECT_EQ(group.info()->rank, n - 1 - session.rank());
  if (n == 1) return;
  std::int32_t in_world = session.rank(), in_group = 100 + session.rank();
  if (session.rank() == 0) {
    Handle first = session.send_async("x", view_scalar(in_world), n - 1);
    session.send("x", view_scalar(in_group), 0, {.group = group});
    first.wait();
  } else if (session.rank() == n - 1) {
    Handle first = session.recv_async("x", view_scalar(in_group), n - 1, {.group = group});
    session.recv("x", view_scalar(in_world), 0);
    first.wait();
    EXPECT_EQ(in_world, 0);
    EXPECT_EQ(in_group, 100);
  }
  session.remove_group(group);
}

inline void refuse_pairs_that_do_not_match(Session& session) {
  const int n = session.size(), rank = session.rank();
  float value = 0;
  EXPECT_EQ(error_text([&] { session.send("x", view_scalar(value), rank); }, ErrorCode::invalid_argument),
            "send 'x' in group world: rank " + std::to_string(rank) + " is not another rank of the group (it has " +
                std::to_string(n) + ", from 0; this is " + std::to_string(rank) + ")");
  if (n == 1) return;
  std::vector<float> three(3), four(4);
  const std::string wrong =
      "send/recv 'x' in group 0 to 1: ranks submitted different shapes (rank 0: f32[3]; rank 1: f32[4]); submit the "
      "same shape on every rank";
  if (rank == 0) {
    EXPECT_EQ(error_text([&] { session.send("x", view(three), 1); }, ErrorCode::mismatch), wrong);
    session.send("x", view(four), 1);
  }
  if (rank == 1) {
    EXPECT_EQ(error_text([&] { session.recv("x", view(four), 0); }, ErrorCode::mismatch), wrong);
    session.recv("x", view(four), 0);
  }
  // Withdrawn before the other has come: as if it had never been.
  if (rank == 0) (void)session.send_async("w", view(three), 1);
  session.barrier();
  if (rank == 0) session.send("w", view(four), 1);
  if (rank == 1) session.recv("w", view(four), 0);
}

inline void run_pairs(Session& session) {
  pass_around(session);
  first_in_first_out(session);
  send_in_a_group(session);
  refuse_pairs_that_do_not_match(session);
  pass_around(session);
}

}  // namespace kolo::testing
