#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include <kolo/session.h>

#include "tests/support/thread_ranks.h"

namespace kolo::testing {

// Programs in which ranks run out of data at different times, in closed form, for ranks as threads and as processes.

/// What the ranks that are still active reduce, with `joined` ranks gone; the active ones hold rank + 1.
inline void reduce_while_joined(Session& session, const std::vector<bool>& joined) {
  const int n = session.size(), rank = session.rank();
  int active = 0, sum = 0, product = 1, low = 0, high = 0;
  for (int r = 0; r < n; ++r) {
    if (joined[static_cast<std::size_t>(r)]) continue;
    low = active++ == 0 ? r + 1 : low;
    high = r + 1;
    sum += r + 1;
    product *= r + 1;
  }
  const auto reduced = [&](ReduceOp op, float sign, bool by_group = false) {
    float value = sign * static_cast<float>(rank + 1);
    session.all_reduce("joined", view_scalar(value), {.op = op, .divide_by_group = by_group});
    return value;
  };
  EXPECT_EQ(reduced(ReduceOp::sum, 1), static_cast<float>(sum));
  EXPECT_EQ(reduced(ReduceOp::average, 1), static_cast<float>(sum) / static_cast<float>(active));
  EXPECT_EQ(reduced(ReduceOp::average, 1, true), static_cast<float>(sum) / static_cast<float>(n));
  EXPECT_EQ(reduced(ReduceOp::min, 1), static_cast<float>(low));
  EXPECT_EQ(reduced(ReduceOp::max, -1), static_cast<float>(-low));
  EXPECT_EQ(reduced(ReduceOp::max, 1), static_cast<float>(high));
  EXPECT_EQ(reduced(ReduceOp::product, 1), static_cast<float>(product));
  const double adasum = [&] {  // parallel gradients average, two by two over the tree; with zeros for those gone
    std::vector<double> level;
    for (int r = 0; r < n; ++r) level.push_back(joined[static_cast<std::size_t>(r)] ? 0 : r + 1);
    while (level.size() > 1) {
      std::vector<double> next;
      for (std::size_t i = 0; i < level.size(); i += 2) {
        const double a = level[i], b = i + 1 < level.size() ? level[i + 1] : 0;
        next.push_back(a == 0 || b == 0 ? a + b : (1 - b / (2 * a)) * a + (1 - a / (2 * b)) * b);
      }
      level = next;
    }
    return level.front();
  }();
  EXPECT_NEAR(reduced(ReduceOp::adasum, 1), adasum, 1e-4);
  std::uint8_t bits = static_cast<std::uint8_t>(~(1u << rank));
  session.all_reduce("bits", view_scalar(bits), {.op = ReduceOp::bit_and});
  for (int r = 0; r < n; ++r) EXPECT_EQ((bits >> r & 1) == 0, !joined[static_cast<std::size_t>(r)]);
}

/// The other operations, from and to the rank `active`.
inline void move_while_joined(Session& session, const std::vector<bool>& joined, int active) {
  const int n = session.size(), rank = session.rank();
  std::int32_t value = rank == active ? 77 : 0;
  session.broadcast("from active", view_scalar(value), {.root = active});
  EXPECT_EQ(value, 77);
  std::vector<std::int32_t> mine(2, rank), all(static_cast<std::size_t>(2 * n), -1), wanted;
  for (int r = 0; r < n; ++r) wanted.insert(wanted.end(), joined[static_cast<std::size_t>(r)] ? 0 : 2, r);
  BlockRows rows;
  session.all_gather("rows", view(mine), view(all), {.rows = &rows});
  EXPECT_EQ(std::vector<std::int32_t>(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(wanted.size())), wanted);
  for (int r = 0; r < n; ++r) EXPECT_EQ(rows[static_cast<std::size_t>(r)], joined[static_cast<std::size_t>(r)] ? 0 : 2);
  all.assign(all.size(), -1);
  session.gather("to active", view(mine), rank == active ? view(all) : Tensor{}, {.root = active});
  if (rank == active) {
    EXPECT_EQ(std::vector<std::int32_t>(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(wanted.size())), wanted);
  }
  std::vector<float> whole(static_cast<std::size_t>(3 * n), static_cast<float>(rank)), part(3);
  float sum = 0;
  for (int r = 0; r < n; ++r) sum += joined[static_cast<std::size_t>(r)] ? 0.0f : static_cast<float>(r);
  session.reduce_scatter("scattered", view(whole), view(part));
  EXPECT_EQ(part, std::vector<float>(3, sum));
  session.scatter("dealt", view(whole), view(part), {.root = active});
  EXPECT_EQ(part, std::vector<float>(3, static_cast<float>(active)));
  std::vector<std::int32_t> out(static_cast<std::size_t>(n)), in(static_cast<std::size_t>(n), rank), received;
  session.all_to_all("exchanged", view(in), view(out), {.rows = &rows});
  for (int r = 0; r < n; ++r) received.insert(received.end(), joined[static_cast<std::size_t>(r)] ? 0 : 1, r);
  EXPECT_EQ(std::vector<std::int32_t>(out.begin(), out.begin() + static_cast<std::ptrdiff_t>(received.size())),
            received);
  session.reduce("to one", view(mine), {.op = ReduceOp::max, .root = active});
  session.barrier();
  session.barrier();
  session.monitored_barrier(30);
}

/// What needs a rank that has joined is refused, by name.
inline void refuse_while_joined(Session& session, int gone) {
  std::int32_t value = 1;
  const std::string why =
      ": the root, rank " + std::to_string(gone) + ", has joined and takes part no more; choose one that has not";
  EXPECT_EQ(
      error_text([&] { session.broadcast("b", view_scalar(value), {.root = gone}); }, ErrorCode::invalid_argument),
      "broadcast 'b' in group world" + why);
  EXPECT_EQ(error_text([&] { session.reduce("r", view_scalar(value), {.root = gone}); }, ErrorCode::invalid_argument),
            "reduce 'r' in group world" + why);
  const std::string pair = std::to_string(session.rank()) + " to " + std::to_string(gone);
  EXPECT_EQ(error_text([&] { session.send("s", view_scalar(value), gone); }, ErrorCode::invalid_argument),
            "send/recv 's' in group " + pair + ": rank " + std::to_string(gone) +
                " has joined and takes part no more until all have; send before that");
}

/// Rank `order[k]` joins k-th; the last one runs everything with all the others gone. Twice, so that nothing is left
/// behind.
inline void join_one_after_the_other(Session& session, const std::vector<int>& order) {
  const int n = session.size();
  for (int round = 0; round < 2; ++round) {
    std::vector<bool> joined(static_cast<std::size_t>(n), false);
    for (int k = 0; k + 1 < n && order[static_cast<std::size_t>(k)] != session.rank(); ++k) {
      joined[static_cast<std::size_t>(order[static_cast<std::size_t>(k)])] = true;
      float active = 1;  // waits until that rank has joined
      session.all_reduce("who is left", view_scalar(active));
      EXPECT_EQ(active, static_cast<float>(n - k - 1));
      reduce_while_joined(session, joined);
      move_while_joined(session, joined, order[static_cast<std::size_t>(n - 1)]);
      refuse_while_joined(session, order[0]);
    }
    EXPECT_EQ(session.join(), order[static_cast<std::size_t>(n - 1)]);
    float value = 1;
    session.all_reduce("all again", view_scalar(value));
    EXPECT_EQ(value, static_cast<float>(n));
    session.barrier();
  }
}

inline void run_joins(Session& session) {
  const int n = session.size();
  std::vector<int> up, down;
  for (int rank = 0; rank < n; ++rank) {
    up.push_back(rank);
    down.insert(down.begin(), rank);
  }
  join_one_after_the_other(session, up);
  join_one_after_the_other(session, down);
}

/// Uneven epochs: rank r has r + 2 batches, each of several tensors, some of them fused; the average is over those that
/// took part.
inline void run_uneven_epochs(Session& session) {
  const int n = session.size(), rank = session.rank();
  for (int epoch = 0; epoch < 3; ++epoch) {
    for (int batch = 0; batch < rank + 2; ++batch) {
      std::vector<std::vector<float>> gradients(5, std::vector<float>(7, 2.0f));
      std::vector<Handle> handles;
      for (std::size_t i = 0; i < gradients.size(); ++i) {
        handles.push_back(
            session.all_reduce_async(fmt::format("g{}", i), view(gradients[i]), {.op = ReduceOp::average}));
      }
      for (Handle& handle : handles) handle.wait();
      for (const auto& gradient : gradients) EXPECT_EQ(gradient, std::vector<float>(7, 2.0f));
    }
    EXPECT_GE(session.join(), 0);
  }
  EXPECT_LT(n, 100);
}

/// Names of the program's that look like the runtime's own, where ranks that have joined hear of them.
inline void join_beside_objects(Session& session) {
  const int last = session.size() - 1;
  if (last == 0) return;
  for (int round = 0; round < 2; ++round) {
    for (const char* name : {"barrier.0", "barrier.x", "groups.99999999999999999999", "close", "join.0"}) {
      if (session.rank() == last) continue;
      EXPECT_EQ(session.broadcast_object(name, "bytes"), "bytes");
      EXPECT_EQ(session.all_gather_object(name, "bytes").front(), "bytes");
    }
    EXPECT_GE(session.join(), 0);
    session.barrier();
    session.remove_group(session.new_group(std::vector<int>{0, last}));
  }
}

/// Groups join on their own; a thread that submits while its rank has joined gets an error.
inline void join_in_a_group(Session& session) {
  if (session.size() < 3) return;
  const Group group = session.new_group(std::vector<int>{0, 2});
  if (session.rank() == 0) {
    EXPECT_EQ(session.join(group), 1);
  } else if (session.rank() == 2) {
    float value = 1;  // waits until rank 0 has joined
    session.all_reduce("left", view_scalar(value), {.group = group});
    EXPECT_EQ(value, 1);
    EXPECT_EQ(session.join(group), 1);
  }
  float value = 1;
  session.all_reduce("world", view_scalar(value));
  EXPECT_EQ(value, static_cast<float>(session.size()));
}

}  // namespace kolo::testing
