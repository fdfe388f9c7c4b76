#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <filesystem>
#include <iterator>
#include <thread>
#include <vector>

#include <kolo/session.h>

#include "tests/support/thread_ranks.h"

namespace kolo::testing {

/// Programs over groups with expectations in closed form, for ranks as threads and as processes. Every rank of a
/// session runs the same one.

inline float sum_of_ranks(Session& session, const char* name, const Group& group) {
  float value = static_cast<float>(session.rank());
  session.all_reduce(name, view_scalar(value), {.group = group});
  return value;
}

/// What is in flight in a group that one rank abandons fails on all, and other groups go on.
inline void abandon_a_group(Session& session) {
  const int n = session.size(), rank = session.rank();
  std::vector<int> all;
  for (int member = 0; member < n; ++member) all.push_back(member);
  for (const Order order : {Order::program, Order::names}) {
    const Group group = session.new_group(all, {.order = order}), other = session.new_group(all, {.order = order});
    const auto reduce = [&](const Group& in, float& value) {
      return order == Order::program ? session.all_reduce_async(view_scalar(value), {.group = in})
                                     : session.all_reduce_async("x", view_scalar(value), {.group = in});
    };
    float first = 1, second = 1, third = 1;
    reduce(group, first).wait();
    session.barrier();  // in flight on no rank any more
    float never = 0;
    Handle message;  // nobody sends it
    if (order == Order::names && n > 1 && rank != n - 1)
      message = session.recv_async("never", view_scalar(never), n - 1, {.group = group});
    if (rank == n - 1) session.abandon_group(group);
    if (order == Order::names && n > 1) {
      const auto failed = error_text(
          [&] { rank == n - 1 ? session.send("never", view_scalar(never), 0, {.group = group}) : message.wait(); },
          ErrorCode::closed);
      EXPECT_NE(failed.find("has abandoned it"), std::string::npos) << failed;
    }
    const auto text = error_text([&] { reduce(group, second).wait(); }, ErrorCode::closed);
    EXPECT_NE(text.find("rank " + std::to_string(n - 1) + " has abandoned it"), std::string::npos) << text;
    session.remove_group(group);
    reduce(other, third).wait();
    EXPECT_EQ(third, static_cast<float>(n));
    session.remove_group(other);
  }
  EXPECT_EQ(error_text([&] { session.abandon_group({}); }, ErrorCode::invalid_argument),
            "the group of all ranks cannot be abandoned alone; abandon the session");
  EXPECT_EQ(error_text(
                [&] {
                  session.refuse_async(OpKind::join, "x", {ErrorCode::backend, "no"});
                },
                ErrorCode::invalid_argument),
            "join cannot be refused: it is no collective");
}

inline void reduce_in_groups(Session& session) {
  const int n = session.size();
  std::vector<int> even;
  for (int rank = 0; rank < n; rank += 2) even.push_back(rank);
  const Group group = session.new_group(even);
  EXPECT_EQ(group.info()->ranks, even);
  EXPECT_EQ(group.info()->member(), session.rank() % 2 == 0);
  float expected = 0;
  for (int rank : even) expected += static_cast<float>(rank);
  for (int round = 0; round < 5; ++round) {
    if (session.rank() % 2 == 0) {
      EXPECT_EQ(sum_of_ranks(session, "x", group), expected);
      std::int32_t from_last = session.rank();
      session.broadcast("b", view_scalar(from_last), {.root = static_cast<int>(even.size()) - 1, .group = group});
      EXPECT_EQ(from_last, even.back());
      session.barrier(group);
    } else {
      EXPECT_EQ(error_text([&] { sum_of_ranks(session, "x", group); }, ErrorCode::invalid_argument),
                "rank " + std::to_string(session.rank()) + " is no member of group " + group.info()->name +
                    "; only members call its operations");
    }
    EXPECT_EQ(sum_of_ranks(session, "x", {}), static_cast<float>(n * (n - 1) / 2)) << "the same name in the world";
  }
  session.remove_group(group);
}

/// Groups {0,1}, {1,2}, {2,0}: each rank submits to its two in another order, and nobody waits for one that is not
/// ready.
inline void reduce_in_pairs(Session& session) {
  if (session.size() < 3) return;
  std::vector<Group> pairs;
  for (int first = 0; first < 3; ++first) pairs.push_back(session.new_group(std::vector<int>{first, (first + 1) % 3}));
  if (session.rank() < 3) {
    for (int round = 0; round < 20; ++round) {
      const std::size_t mine[2] = {static_cast<std::size_t>(session.rank()),
                                   static_cast<std::size_t>((session.rank() + 2) % 3)};
      float values[2] = {static_cast<float>(session.rank()), static_cast<float>(session.rank())};
      std::vector<Handle> handles;
      for (int i : {round % 2, 1 - round % 2}) {
        handles.push_back(session.all_reduce_async("same name", view_scalar(values[i]), {.group = pairs[mine[i]]}));
      }
      for (Handle& handle : handles) handle.wait();
      for (int i : {0, 1}) {
        const auto& ranks = pairs[mine[i]].info()->ranks;
        EXPECT_EQ(values[i], static_cast<float>(ranks[0] + ranks[1]));
      }
    }
  }
  for (const Group& pair : pairs) session.remove_group(pair);
}

/// Each rank with the last one: on several nodes, ranks that lead no node in the world lead theirs here.
inline void reduce_with_the_last(Session& session) {
  const int last = session.size() - 1;
  for (int first = 0; first < last; ++first) {
    const Group pair = session.new_group(std::vector<int>{first, last});
    for (int round = 0; round < 3 && pair.info()->member(); ++round) {
      EXPECT_EQ(sum_of_ranks(session, "pair", pair), static_cast<float>(first + last));
    }
  }
}

/// A group whose last member comes late delays nobody else: it comes only after another group's rounds are done.
inline void wait_in_one_group(Session& session) {
  const int n = session.size();
  if (n < 3) return;
  const Group late = session.new_group(std::vector<int>{0, n - 1});
  const Group awake = session.new_group(std::vector<int>{0, 1});
  float value = 0;
  Handle waiting;
  if (session.rank() == 0) waiting = session.all_reduce_async("late", view_scalar(value), {.group = late});
  for (int round = 0; round < 20 && session.rank() < 2; ++round) sum_of_ranks(session, "awake", awake);
  if (session.rank() == 0) {
    EXPECT_FALSE(waiting.poll());
  }
  session.barrier();
  if (session.rank() == n - 1) sum_of_ranks(session, "late", late);
  if (session.rank() == 0) {
    waiting.wait();
    EXPECT_EQ(value, static_cast<float>(n - 1));
  }
}

inline void split_by_color(Session& session) {
  const int n = session.size();
  for (int colors = 1; colors <= 3; ++colors) {
    const Group group = session.split(session.rank() % colors);
    float expected = 0;
    for (int rank = session.rank() % colors; rank < n; rank += colors) expected += static_cast<float>(rank);
    EXPECT_EQ(sum_of_ranks(session, "split", group), expected);
    session.remove_group(group);
    const auto late = error_text([&] { sum_of_ranks(session, "split", group); }, ErrorCode::closed);
    EXPECT_NE(late.find("the group was removed"), std::string::npos) << late;
  }
  const Group odd_only = session.split(session.rank() % 2 == 1 ? 7 : -1);
  EXPECT_EQ(odd_only.info()->member(), session.rank() % 2 == 1);
  session.remove_group(odd_only);
  session.remove_group(session.split(-1));  // which is none
  EXPECT_EQ(sum_of_ranks(session, "split", {}), static_cast<float>(n * (n - 1) / 2));
}

/// A thousand groups, one after the other, each used once and removed: no descriptor stays open.
inline void make_and_remove_groups(Session& session) {
  const auto descriptors = [&] {
    session.barrier();  // ranks as threads share them
    const std::filesystem::directory_iterator open("/proc/self/fd"), end;
    const auto count = std::distance(open, end);
    session.barrier();
    return count;
  };
  std::ptrdiff_t before = 0;
  for (int round = 0; round < 1000; ++round) {
    const Order order = round % 2 == 0 ? Order::names : Order::program;
    const Group group = session.new_group(session.world().info()->ranks, {.order = order});
    float one = 1;
    if (order == Order::names) session.all_reduce("x", view_scalar(one), {.group = group});
    if (order == Order::program) session.all_reduce(view_scalar(one), {.group = group});
    EXPECT_EQ(one, static_cast<float>(session.size()));
    session.remove_group(group);
    if (round == 99) before = descriptors();
  }
  EXPECT_LE(descriptors(), before + 8);
}

/// Members that do not come at once keep nobody waiting, and the last of them ends it for all.
inline void remove_groups_later(Session& session) {
  const std::vector<int> all = session.world().info()->ranks;
  std::vector<Handle> handles;
  for (int round = 0; round < 50; ++round) {
    const Order order = round % 2 == 0 ? Order::names : Order::program;
    const Group group = session.new_group(all, {.order = order});
    if (order == Order::program) session.barrier(group);
    if (session.rank() == 0) {
      handles.push_back(session.remove_group_async(group));
      EXPECT_TRUE(session.size() == 1 || !handles.back().poll());
    }
    EXPECT_EQ(sum_of_ranks(session, "meanwhile", {}), static_cast<float>(session.size() * (session.size() - 1) / 2));
    if (session.rank() != 0) handles.push_back(session.remove_group_async(group));
    if (round % 3 == 0) wait_all(handles);
    EXPECT_FALSE(round % 3 == 0 && session.remove_group_async(group)) << "it is removed";
  }
  wait_all(handles);
  EXPECT_EQ(error_text([&] { session.remove_group_async(session.world()); }, ErrorCode::invalid_argument).substr(0, 28),
            "the group of all ranks canno");
}

inline void misuse_groups(Session& session) {
  const int n = session.size();
  if (n < 2) return;
  const auto twice = error_text([&] { (void)session.new_group(std::vector<int>{0, 0}); }, ErrorCode::invalid_argument);
  EXPECT_EQ(twice, "rank 0 is listed twice");
  const auto none = error_text([&] { (void)session.new_group(std::vector<int>{0, 99}); }, ErrorCode::invalid_argument);
  EXPECT_NE(none.find("99 is not a rank"), std::string::npos) << none;
  const auto world = error_text([&] { session.remove_group(session.world()); }, ErrorCode::invalid_argument);
  EXPECT_NE(world.find("the group of all ranks cannot be removed"), std::string::npos) << world;
  const Group removed = session.new_group(std::vector<int>{0, 1});
  if (session.rank() > 1) {
    session.remove_group(removed);   // of which it is no member
  } else if (session.rank() == 0) {  // one rank has something in flight
    float one = 1;
    Handle handle = session.all_reduce_async("never", view_scalar(one), {.group = removed});
    const auto busy = error_text([&] { session.remove_group(removed); }, ErrorCode::invalid_argument);
    EXPECT_NE(busy.find("the group has operations in flight"), std::string::npos) << busy;
  } else {
    error_text([&] { session.remove_group(removed); }, ErrorCode::invalid_argument);
  }
  if (session.rank() < 2) {
    EXPECT_EQ(sum_of_ranks(session, "goes on", removed), 1);
  }
  session.remove_group(removed);
  if (session.rank() < 2) {
    const auto late = error_text([&] { sum_of_ranks(session, "x", removed); }, ErrorCode::closed);
    EXPECT_NE(late.find("the group was removed"), std::string::npos) << late;
  }
  EXPECT_EQ(sum_of_ranks(session, "still alive", {}), static_cast<float>(n * (n - 1) / 2));
}

}  // namespace kolo::testing
