#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include <kolo/session.h>

#include "tests/runtime/session/tagged_programs.h"
#include "tests/support/thread_ranks.h"

namespace kolo::testing {

/// Programs over groups whose operations are matched by their order, with expectations in closed form. Every rank of a
/// session runs the same one.

/// Each operation, small and large, in place and not, with blocks that differ.
inline void every_operation_in_order(Session& session) {
  const int n = session.size(), me = session.rank();
  const auto ranks = static_cast<std::size_t>(n), mine = static_cast<std::size_t>(me);
  const Group g = ordered_group(session);
  const float sum = static_cast<float>(n * (n - 1) / 2);
  for (const std::size_t length : {std::size_t{1}, std::size_t{1000}, std::size_t{300'000}}) {
    std::vector<float> values(length, static_cast<float>(me)), out(length);
    session.all_reduce_async(view(values), view(out), {.group = g}).wait();
    EXPECT_EQ(out, std::vector<float>(length, sum));
    session.all_reduce(view(values), {.op = ReduceOp::max, .group = g});
    EXPECT_EQ(values, std::vector<float>(length, static_cast<float>(n - 1)));
    std::vector<std::int16_t> words(length, static_cast<std::int16_t>(me));
    session.broadcast(view(words), {.root = n - 1, .group = g});
    EXPECT_EQ(words, std::vector<std::int16_t>(length, static_cast<std::int16_t>(n - 1)));
    std::fill(values.begin(), values.end(), 1.0f);
    session.reduce(view(values), {.root = 0, .group = g});
    if (me == 0) {
      EXPECT_EQ(values, std::vector<float>(length, static_cast<float>(n)));
    }
    session.barrier(g);
    std::vector<std::int32_t> block((mine + 1) * length, me), gathered(length * ranks * (ranks + 1) / 2);
    session.all_gather(view(block), view(gathered), {.group = g});
    EXPECT_EQ(gathered.back(), n - 1);
    EXPECT_EQ(std::count(gathered.begin(), gathered.end(), 0), static_cast<std::ptrdiff_t>(length));
    BlockRows rows;
    std::vector<std::int32_t> made;
    session.gather(view(block), {},
                   {.root = n - 1,
                    .group = g,
                    .allocate =
                        [&](const Shape& shape) {
                          made.resize(static_cast<std::size_t>(shape[0]));
                          return view(made);
                        },
                    .rows = &rows});
    if (me == n - 1) {
      EXPECT_EQ(made, gathered);
      EXPECT_EQ(rows.back(), static_cast<std::int64_t>(ranks * length));
    }
    std::vector<double> many(length * ranks, 1.0), few(length);
    session.reduce_scatter(view(many), view(few), {.group = g});
    EXPECT_EQ(few, std::vector<double>(length, n));
    std::vector<std::int64_t> parts(length * ranks), part(length);
    for (std::size_t i = 0; i < parts.size(); ++i) parts[i] = static_cast<std::int64_t>(i / length);
    session.scatter(view(parts), view(part), {.root = 0, .group = g});
    EXPECT_EQ(part, std::vector<std::int64_t>(length, me));
    std::vector<std::int64_t> exchanged(parts.size());
    session.all_to_all(view(parts), view(exchanged), {.group = g});
    EXPECT_EQ(exchanged, std::vector<std::int64_t>(parts.size(), me));
  }
  EXPECT_EQ(session.broadcast_object(me == 0 ? "from the first" : std::string(14, ' '), {.group = g}),
            "from the first");
  const auto objects = session.all_gather_object(std::string(mine, 'x'), g);
  EXPECT_EQ(objects.back(), std::string(ranks - 1, 'x'));
  std::vector<float> empty;
  session.all_reduce(view(empty), {.group = g});
  float a = 1;
  double b = 2;
  const std::array<NamedTensor, 2> together{
      {{"", view_scalar(a), view_scalar(a)}, {"", view_scalar(b), view_scalar(b)}}};
  session.grouped_all_reduce_async(together, {.group = g}).wait();
  EXPECT_EQ(a, static_cast<float>(n));
  EXPECT_EQ(b, 2.0 * n);
  session.remove_group(g);
}

/// Many at once, more than there are places for, beside operations with names.
inline void many_in_order(Session& session) {
  const int n = session.size();
  const Group g = ordered_group(session);
  std::vector<float> values(300, 1.0f), named(20, 1.0f);
  std::vector<Handle> handles;
  for (std::size_t i = 0; i < values.size(); ++i) {
    handles.push_back(session.all_reduce_async(view_scalar(values[i]), {.group = g}));
    if (i % 15 == static_cast<std::size_t>(session.rank()) % 15 && i / 15 < named.size())
      handles.push_back(session.all_reduce_async("named " + std::to_string(i / 15), view_scalar(named[i / 15])));
  }
  for (Handle& handle : handles) handle.wait();
  EXPECT_EQ(values, std::vector<float>(values.size(), static_cast<float>(n)));
  EXPECT_EQ(named, std::vector<float>(named.size(), static_cast<float>(n)));
}

/// What differs is said to all members, whichever of them notices; other groups go on.
inline void differ_in_order(Session& session) {
  const int n = session.size(), me = session.rank();
  if (n < 2) return;
  std::vector<float> values(8, 1.0f);
  const auto text_of = [&](const auto& call) {
    std::string text;
    try {
      for (int i = 0; i < 1'000'000; ++i) call();  // some ranks learn of it when they call again
    } catch (const Error& error) {
      EXPECT_EQ(to_string(error.code()), "mismatch") << error.what();
      text = error.what();
    }
    return text;
  };
  const std::string others = n == 2 ? "rank 1" : n == 3 ? "ranks 1, 2" : "ranks 1-3";
  const auto expect = [&](const Group& g, const std::string& text, const std::string& first, const std::string& rest) {
    EXPECT_NE(text.find("group " + g.info()->name + ": ranks called different operations ("), text.npos) << text;
    EXPECT_NE(text.find(first), text.npos) << text;
    EXPECT_NE(text.find(rest), text.npos) << text;
  };
  {
    const Group g = ordered_group(session);
    const Tensor mine{values.data(), Shape{me == 0 ? 4 : 8}, DType::f32, {}};
    session.barrier(g);
    expect(g, text_of([&] { session.all_reduce(mine, {.group = g}); }), "rank 0: #1 all_reduce(sum) f32[4]",
           "#1 all_reduce(sum) f32[8]");
    session.remove_group(g);
  }
  {
    const Group g = ordered_group(session);
    const auto call = [&] {
      if (me == 0) session.broadcast(view(values), {.root = 0, .group = g});
      if (me != 0) session.all_reduce(view(values), {.group = g});
    };
    expect(g, text_of(call), "rank 0: #0 broadcast(root 0) f32[8]", "#0 all_reduce(sum) f32[8]");
  }
  {
    const Group g = ordered_group(session);
    const auto call = [&] {
      if (me == 0) session.barrier(g);
      if (me != 0) session.reduce(view(values), {.root = 1, .group = g});
    };
    expect(g, text_of(call), "rank 0: #0 barrier", "#0 reduce(sum, root 1) f32[8]");
  }
  {
    const Group g = ordered_group(session);
    const auto call = [&] {
      session.all_reduce(view(values), {.op = ReduceOp::adasum, .group = g, .prescale = me == 0 ? 0.5 : 1.0});
    };
    expect(g, text_of(call), "rank 0: #0 all_reduce(adasum", "#0 all_reduce(adasum");
  }
  std::fill(values.begin(), values.end(), 1.0f);
  session.all_reduce("goes on", view(values));
  EXPECT_EQ(values.front(), static_cast<float>(n));
}

inline void misuse_ordered_groups(Session& session) {
  const Group g = ordered_group(session), named = session.new_group(g.info()->ranks);
  float one = 1;
  EXPECT_EQ(error_text([&] { session.all_reduce("x", view_scalar(one), {.group = g}); }, ErrorCode::invalid_argument),
            "all_reduce 'x' in group " + g.info()->name +
                ": the group matches operations by their order, and they have no name; leave it out");
  EXPECT_EQ(error_text([&] { session.all_reduce(view_scalar(one), {.group = named}); }, ErrorCode::invalid_argument),
            "all_reduce in group " + named.info()->name +
                ": the group matches operations by name; pass one, or make an ordered group");
  (void)error_text([&] { session.join(g); }, ErrorCode::invalid_argument);
  const Tensor nowhere{nullptr, Shape{3}, DType::f32, {}};
  (void)error_text([&] { session.all_reduce(nowhere, {.group = g}); }, ErrorCode::invalid_argument);
  session.all_reduce(view_scalar(one), {.group = g});  // the wrong calls have taken no places
  EXPECT_EQ(one, static_cast<float>(session.size()));
}

/// A time-out names who is behind, and where it is.
inline void be_late_in_order(Session& session) {
  const int n = session.size();
  if (n < 2) return;
  const Group g = ordered_group(session);
  float one = 1;
  session.all_reduce(view_scalar(one), {.group = g});
  if (session.rank() != n - 1) {
    const auto text = error_text([&] { session.barrier({.group = g, .timeout_seconds = 0.2}); }, ErrorCode::stalled);
    EXPECT_NE(text.find("barrier '#1' in group " + g.info()->name + ": not submitted by rank " + std::to_string(n - 1)),
              text.npos)
        << text;
    EXPECT_NE(text.find("rank " + std::to_string(n - 1) + " has come to #0 all_reduce(sum) f32[]"), text.npos) << text;
  }
  session.barrier();  // until the others have given up
  if (session.rank() == n - 1) (void)error_text([&] { session.barrier(g); }, ErrorCode::stalled);
}

}  // namespace kolo::testing
