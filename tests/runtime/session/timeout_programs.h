#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <kolo/session.h>

#include "runtime/types/rank_set.h"
#include "tests/support/thread_ranks.h"

// Programs whose operations wait for a rank that comes too late, or not at all.

namespace kolo::testing {

/// "all_reduce 'x' in group world: not submitted by rank 2 within 0.1 s (rank 0 has waited that long; submitted by
/// ranks 0, 1); see what they do". On a busy machine others may be late, too.
inline void expect_late(const std::string& text, const std::string& what, int last) {
  const std::string begin = what + ": not submitted by rank";
  EXPECT_EQ(text.substr(0, begin.size()), begin);
  EXPECT_NE(text.find(std::to_string(last) + " within 0.1 s (rank "), std::string::npos) << text;
  EXPECT_NE(text.find(" has waited that long; submitted by rank"), std::string::npos) << text;
  EXPECT_NE(text.find("); see what they do"), std::string::npos) << text;
}

inline void time_out(Session& session) {
  using namespace std::chrono_literals;
  const int n = session.size(), rank = session.rank(), last = n - 1;
  std::vector<float> in(static_cast<std::size_t>(4 * n), 1), out(static_cast<std::size_t>(4 * n * n));
  const Tensor small = view(in);
  double timeout = rank == last ? 60 : 0.1;
  struct Case {
    const char* what;
    std::function<void()> call;
  };
  std::vector<Case> cases{
      {"all_reduce 'reduced' in group world",
       [&] { session.all_reduce("reduced", small, {.timeout_seconds = timeout}); }},
      {"reduce 'to one' in group world", [&] { session.reduce("to one", small, {.timeout_seconds = timeout}); }},
      {"broadcast 'copied' in group world", [&] { session.broadcast("copied", small, {.timeout_seconds = timeout}); }},
      {"all_gather 'gathered' in group world",
       [&] { session.all_gather("gathered", small, view(out), {.timeout_seconds = timeout}); }},
      {"gather 'to the root' in group world",
       [&] { session.gather("to the root", small, view(out), {.timeout_seconds = timeout}); }},
      {"reduce_scatter 'dealt' in group world",
       [&] {
         const Tensor part{out.data(), Shape{4}, DType::f32, {}};
         session.reduce_scatter("dealt", small, part, {.timeout_seconds = timeout});
       }},
      {"all_to_all 'exchanged' in group world",
       [&] {
         const Tensor all{out.data(), Shape{4 * n}, DType::f32, {}};
         session.all_to_all("exchanged", small, all, {.timeout_seconds = timeout});
       }},
      {"all_reduce 'together' in group world",
       [&] {
         const std::vector<NamedTensor> tensors{{"part", small, small}};
         session.grouped_all_reduce_async("together", tensors, {.timeout_seconds = timeout}).wait();
       }},
  };
  if (n == 1) {
    for (const Case& one : cases) one.call();
    return;
  }
  const bool is_rung_late = session.local_size() < n;  // from other nodes: then the late rank answers within a second
  const auto late = is_rung_late ? 2500ms : 400ms;
  if (is_rung_late) cases.resize(2);
  for (int round = 0; round < 2; ++round) {  // new names, and some known ones
    for (const Case& one : std::span(cases).first(round == 0 ? cases.size() : 2)) {
      if (rank == last) std::this_thread::sleep_for(late);
      const std::string text = error_text(one.call, ErrorCode::stalled);
      expect_late(text, one.what, last);
      EXPECT_EQ(session.all_gather_object("texts", text), std::vector(static_cast<std::size_t>(n), text));
    }
    session.barrier();
    const double short_time = std::exchange(timeout, 60);
    for (const Case& one : cases) one.call();  // the session goes on
    timeout = short_time;
  }

  // Of a bucket that is planned, the others run.
  std::vector<float> a(10, 1), b(10, 1);
  for (int step = 0; step < 3; ++step) {
    Handle first = session.all_reduce_async("a", view(a));
    Handle second = session.all_reduce_async("b", view(b));
    first.wait();
    second.wait();
  }
  if (rank == last) {
    session.all_reduce("a", view(a));
    std::this_thread::sleep_for(late);
    expect_late(error_text([&] { session.all_reduce("b", view(b)); }, ErrorCode::stalled),
                "all_reduce 'b' in group world", last);
  } else {
    Handle first = session.all_reduce_async("a", view(a));
    Handle second = session.all_reduce_async("b", view(b), {.timeout_seconds = timeout});
    first.wait();
    expect_late(error_text([&] { second.wait(); }, ErrorCode::stalled), "all_reduce 'b' in group world", last);
  }
  session.all_reduce("b", view(b));

  // Between two ranks, twice under one name: the k-th still meets the k-th.
  float value = static_cast<float>(rank);
  if (rank == 0) {
    EXPECT_NE(error_text([&] { session.send("sent", view_scalar(value), last, {.timeout_seconds = 0.1}); },
                         ErrorCode::stalled),
              "");
    value = 17;
    session.send("sent", view_scalar(value), last);
  } else if (rank == last) {
    std::this_thread::sleep_for(late);
    const auto text = error_text([&] { session.recv("sent", view_scalar(value), 0); }, ErrorCode::stalled);
    EXPECT_NE(text.find("rank " + std::to_string(last) + " within 0.1 s"), std::string::npos) << text;
    session.recv("sent", view_scalar(value), 0);
    EXPECT_EQ(value, 17);
  }
  session.barrier();

  // Nobody waits for the handles: what all have submitted runs, though more belongs to its bucket.
  for (int step = 0; step < 2; ++step) {
    Handle first = session.all_reduce_async("c", view(a), {.timeout_seconds = 1});
    if (step == 1) std::this_thread::sleep_for(1200ms);
    Handle second = session.all_reduce_async("d", view(b));
    first.wait();
    second.wait();
  }
  EXPECT_EQ(error_text([&] { session.barrier({.timeout_seconds = -3}); }, ErrorCode::invalid_argument).substr(0, 8),
            "barrier ");
}

}  // namespace kolo::testing
