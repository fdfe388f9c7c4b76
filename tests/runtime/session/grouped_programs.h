#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <kolo/data_parallel.h>
#include <kolo/session.h>

#include "runtime/types/rank_set.h"
#include "tests/support/thread_ranks.h"

namespace kolo::testing {

// Programs that submit several tensors together, exchange objects, and use monitored barriers and arenas.

inline void reduce_grouped(Session& session) {
  const int n = session.size(), rank = session.rank();
  for (int round = 0; round < 3; ++round) {
    std::vector<float> a(5, static_cast<float>(rank)), b(1000, 1.0f);
    std::vector<std::int64_t> c(3, rank);
    const std::vector<NamedTensor> tensors{{"a", view(a), view(a)}, {"c", view(c), view(c)}, {"b", view(b), view(b)}};
    const auto before = session.stats();
    session.grouped_all_reduce_async("step", tensors).wait();
    EXPECT_EQ(session.stats().agreements - before.agreements, 1u);
    EXPECT_EQ(session.stats().buckets - before.buckets, 2u) << "one for each type";
    EXPECT_EQ(a, std::vector<float>(5, static_cast<float>(n * (n - 1) / 2)));
    EXPECT_EQ(b, std::vector<float>(1000, static_cast<float>(n)));
    EXPECT_EQ(c, std::vector<std::int64_t>(3, n * (n - 1) / 2));
  }
  std::vector<float> p(4, static_cast<float>(rank)), q(2, static_cast<float>(rank));
  session
      .grouped_broadcast_async("parameters", std::vector<NamedTensor>{{"p", view(p), view(p)}, {"q", view(q), view(q)}},
                               {.root = n - 1})
      .wait();
  EXPECT_EQ(p[3] + q[1], static_cast<float>(2 * (n - 1)));
  std::vector<float> in(static_cast<std::size_t>(2 * n), 1), out(2), all(static_cast<std::size_t>(2 * n));
  session.grouped_reduce_scatter_async("rs", std::vector<NamedTensor>{{"in", view(in), view(out)}}).wait();
  session
      .grouped_all_gather_async("ag",
                                std::vector<NamedTensor>{{"out", view(out), view(all)}, {"out2", view(out), view(in)}})
      .wait();
  EXPECT_EQ(all, std::vector<float>(static_cast<std::size_t>(2 * n), static_cast<float>(n)));
  EXPECT_EQ(in, all);
}

/// What one rank cannot submit fails on all, whatever the others have submitted.
inline void refuse_for_all(Session& session) {
  const int n = session.size(), rank = session.rank();
  std::vector<float> a(static_cast<std::size_t>(n), 1), all(static_cast<std::size_t>(n * n));
  const std::vector<NamedTensor> two{{"first", view(a), view(a)}, {"second", view(a), view(a)}};
  const Failure why{ErrorCode::backend, "memory is short"};
  for (int round = 0; round < 3; ++round) {
    const bool refuses = rank == round % n;
    const auto fails = [&](Handle handle) {
      try {
        handle.wait();
        ADD_FAILURE() << "it has not failed";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::backend) << error.what();
        EXPECT_NE(std::string(error.what()).find("memory is short"), std::string::npos) << error.what();
      }
    };
    const auto refuse = [&](OpKind kind) { return session.refuse_async(kind, "x", why); };
    fails(refuses ? refuse(OpKind::all_reduce) : session.all_reduce_async("x", view(a)));
    fails(refuses ? refuse(OpKind::all_reduce) : session.grouped_all_reduce_async("x", two));
    fails(refuses ? refuse(OpKind::all_gather) : session.all_gather_async("x", view(a), view(all)));
    fails(refuses ? refuse(OpKind::broadcast) : session.all_to_all_async("x", view(a), view(a), {}));
    std::vector<float> b(5, 1);
    session.all_reduce("x", view(b));
    EXPECT_EQ(b, std::vector<float>(5, static_cast<float>(n)));
  }
}

/// All or nothing.
inline void refuse_grouped(Session& session) {
  const int n = session.size(), rank = session.rank();
  std::vector<float> a(5, 1), b(6), c(7);
  const auto twice =
      std::vector<NamedTensor>{{"a", view(a), view(a)}, {"b", view(b), view(b)}, {"a", view(c), view(c)}};
  EXPECT_EQ(error_text([&] { (void)session.grouped_all_reduce_async("step", twice); }, ErrorCode::in_flight),
            "all_reduce 'a' in group world: the name is already in flight on this rank; wait for the first operation "
            "or use another name");
  session.barrier();
  EXPECT_EQ(a, std::vector<float>(5, 1)) << "nothing ran";
  session.all_reduce("a", view(a));  // nothing was left behind
  session.all_reduce("b", view(b));
  if (n == 1) return;
  const std::string last = "rank " + std::to_string(n - 1), others = to_string(RankSet::range(0, n - 1));
  const bool odd = rank == n - 1;
  const auto expect = [&](std::vector<NamedTensor> tensors, ErrorCode code, const std::string& text) {
    EXPECT_EQ(error_text([&] { session.grouped_all_reduce_async("step", tensors).wait(); }, code),
              "all_reduce 'step' in group world: " + text);
  };
  expect({{"a", view(a), view(a)}, {"b", odd ? view(c) : view(b), odd ? view(c) : view(b)}}, ErrorCode::mismatch,
         "ranks submitted different tensors (" + others + ": number 2 is 'b' f32[6]; " + last +
             ": number 2 is 'b' f32[7]); submit the same tensors together on every rank");
  expect({{"a", view(a), view(a)}, {odd ? "x" : "b", view(b), view(b)}}, ErrorCode::mismatch,
         "ranks submitted different tensors (" + others + ": number 2 is 'b' f32[6]; " + last +
             ": number 2 is 'x' f32[6]); submit the same tensors together on every rank");
  std::vector<NamedTensor> some{{"a", view(a), view(a)}};
  if (odd) some.push_back({"b", view(b), view(b)});
  expect(some, ErrorCode::mismatch,
         "ranks submitted different numbers of tensors (" + others + ": 1 together; " + last +
             ": 2 together); submit the same tensors together on every rank");
  Tensor null = view(b);
  if (odd) null.data = nullptr;
  expect({{"a", view(a), view(a)}, {"b", null, null}}, ErrorCode::invalid_argument,
         last + ": 'b': the tensor's memory is a null pointer (its shape is [6])");
  const std::vector<NamedTensor> both{{"a", view(a), view(a)}, {"b", view(b), view(b)}};
  for (int step = 0; step < 3; ++step) session.grouped_all_reduce_async("step", both).wait();
  const auto one_or_both = [&] {
    if (odd) session.all_reduce("step", view(a));
    if (!odd) session.grouped_all_reduce_async("step", both).wait();
  };
  EXPECT_EQ(error_text(one_or_both, ErrorCode::mismatch),
            "all_reduce 'step' in group world: ranks submitted different numbers of tensors (" + others +
                ": 2 together; " + last + ": one); submit the same tensors together on every rank");
  session.grouped_all_reduce_async("step", both).wait();
}

inline void exchange_objects(Session& session) {
  const int n = session.size(), rank = session.rank();
  const std::string mine =
      "object of " + std::to_string(rank) + std::string(static_cast<std::size_t>(rank) * 1000, '.');
  float one = 1;  // a program may use any name that does not begin with "kolo."
  Handle same_name = session.all_reduce_async("config (bytes)", view_scalar(one));
  for (int root = 0; root < n; ++root) {
    const std::string got = session.broadcast_object("config", mine, {.root = root});
    EXPECT_EQ(got.substr(0, 11), "object of " + std::to_string(root));
    EXPECT_EQ(got.size(), 11 + static_cast<std::size_t>(root) * 1000);
  }
  same_name.wait();
  EXPECT_EQ(one, static_cast<float>(n));
  EXPECT_EQ(session.broadcast_object("empty", ""), "");
  const auto all = session.all_gather_object("objects", rank == 0 ? "" : mine);
  ASSERT_EQ(all.size(), static_cast<std::size_t>(n));
  EXPECT_EQ(all[0], "");
  for (int r = 1; r < n; ++r)
    EXPECT_EQ(all[static_cast<std::size_t>(r)].substr(0, 11), "object of " + std::to_string(r));
}

inline void keep_monitored_barriers(Session& session) {
  using namespace std::chrono_literals;
  const int n = session.size(), rank = session.rank();
  session.monitored_barrier(20);
  const auto refused = error_text([&] { session.monitored_barrier(-1); }, ErrorCode::invalid_argument);
  EXPECT_NE(refused.find("-1 is no time to wait; pass seconds, 0 for no time-out"), std::string::npos) << refused;
  if (n == 1) return;
  const std::string last = "rank " + std::to_string(n - 1);
  if (rank == n - 1) std::this_thread::sleep_for(1500ms);  // it comes too late, and gets that error
  const auto text = error_text([&] { session.monitored_barrier(rank == n - 1 ? 30 : 0.5); }, ErrorCode::stalled);
  EXPECT_EQ(text.find("barrier '"), 0u) << text;
  EXPECT_NE(text.find("' in group world: not submitted by " + last + " within 0.5 s (rank "), std::string::npos)
      << text;
  EXPECT_NE(
      text.find(" has waited that long; submitted by " + to_string(RankSet::range(0, n - 1)) + "); see what they do"),
      std::string::npos)
      << text;
  session.monitored_barrier(20);
  session.barrier();
}

/// The program's own memory becomes such as others reach, and is the program's again when the session has ended.
inline void reduce_adopted_memory(Session& session) {
  constexpr std::size_t page = 4096, pages = 80;
  struct Pages {
    ~Pages() { std::free(data); }
    float* data = static_cast<float*>(std::aligned_alloc(page, pages* page));
  };
  static std::array<Pages, 16> memory;  // which outlives the session, of each rank if these are threads
  float* const data = memory.at(static_cast<std::size_t>(session.rank())).data;
  constexpr std::int64_t count = pages * page / sizeof(float);
  std::fill_n(data, count, 5.0F);
  session.adopt(data, pages * page);
  EXPECT_EQ(std::count(data, data + count, 5.0F), count) << "it holds what it held";
  for (int i = 0; i < 40; ++i) {  // so often that the fastest way is known
    std::fill_n(data, count, static_cast<float>(session.rank() + i));
    session.all_reduce("adopted", view(data, Shape{count}), {.op = ReduceOp::sum});
    const auto sum = static_cast<float>(session.size() * (session.size() - 1) / 2 + i * session.size());
    ASSERT_EQ(std::count(data, data + count, sum), count);
  }
  session.adopt(data, 100);  // has no whole page
  try {
    session.adopt(data + page, page);  // nothing, where no backend has such memory
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    EXPECT_NE(std::string(error.what()).find("some of this memory has been adopted"), std::string::npos);
  }
}

/// The same of gradients, and of values that are gathered.
inline void train_in_adopted_memory(Session& session) {
  constexpr std::size_t count = 50'000;
  struct Model {
    alignas(4096) std::array<float, count> value, gradient, apart;
    std::array<float, 20'000> whole, of_whole;
  };
  static std::array<std::unique_ptr<Model>, 16> models;  // which outlive the session
  auto& model = models.at(static_cast<std::size_t>(session.rank()));
  model = std::make_unique<Model>();
  model->value.fill(static_cast<float>(session.rank()));
  const auto tensor = [](auto& floats) { return view(floats.data(), Shape{std::ssize(floats)}); };
  DataParallel parallel(session,
                        {{"large", tensor(model->value), tensor(model->gradient)},
                         {"whole", tensor(model->whole), tensor(model->of_whole)}},
                        {.shards_from = 30'000, .adopts = true});
  parallel.broadcast();
  for (int step = 1; step < 20; ++step) {
    model->gradient.fill(static_cast<float>(step));
    model->of_whole.fill(static_cast<float>(step));
    parallel.ready(1);
    parallel.ready(0);
    parallel.wait(0);
    const TensorShard mine = parallel.shards()[0];
    for (std::size_t i = mine.first; i < mine.first + mine.count; ++i) model->value[i] += model->gradient[i];
    parallel.updated(0);
    parallel.finish();
    parallel.use(0);
    const auto all = static_cast<float>(session.size());
    ASSERT_EQ(std::ranges::count(model->value, all * static_cast<float>(step * (step + 1) / 2)),
              std::ssize(model->value));
    ASSERT_EQ(std::ranges::count(model->of_whole, all * static_cast<float>(step)), std::ssize(model->of_whole));
  }
  const auto is_adopted = [&](std::span<float> floats) {
    try {
      session.adopt(floats.data(), floats.size_bytes());
      return false;
    } catch (const Error& error) {
      return std::string(error.what()).find("some of this memory has been adopted") != std::string::npos;
    }
  };
  EXPECT_FALSE(is_adopted(model->apart));
  const bool can = is_adopted(model->apart);  // not where no backend has such memory
  EXPECT_EQ(is_adopted(model->gradient), can);
  EXPECT_EQ(is_adopted(model->value), can && session.size() > 1) << "it is gathered";
}

/// Gradients side by side travel without being copied into staging.
inline void reduce_an_arena(Session& session, bool staged_otherwise) {
  const std::vector<Shape> shapes{{100}, {7, 3}, {}, {5000}};
  GradientArena arena(session, DType::f32, shapes);
  ASSERT_EQ(arena.tensors().size(), 4u);
  EXPECT_EQ(arena.whole().elements(), 5122);
  const std::vector<Shape> many(16, Shape{std::int64_t{1} << 57});
  EXPECT_NE(error_text([&] { GradientArena(session, DType::f64, many); }, ErrorCode::invalid_argument), "")
      << "2^64 bytes";
  EXPECT_NE(error_text([&] { (void)session.allocate(~std::size_t{8}); }, ErrorCode::backend), "");
  const auto step = [&](const std::vector<Tensor>& tensors) {
    const auto before = session.stats().staged_bytes;
    std::vector<Handle> handles;
    for (std::size_t i = 0; i < tensors.size(); ++i)
      handles.push_back(session.all_reduce_async("arena" + std::to_string(i), tensors[i]));
    for (Handle& handle : handles) handle.wait();
    return session.stats().staged_bytes - before;
  };
  std::vector<std::vector<float>> apart;
  std::vector<Tensor> scattered;
  for (const Shape& shape : shapes) apart.emplace_back(static_cast<std::size_t>(shape.elements()) + 1);
  for (std::size_t i = 0; i < shapes.size(); ++i) scattered.push_back(view(apart[i].data(), shapes[i]));
  for (int i = 0; i < 3; ++i) (void)step(scattered);
  if (staged_otherwise) {
    EXPECT_GT(step(scattered), 0u);
  } else {
    (void)step(scattered);
  }
  float* values = static_cast<float*>(arena.whole().data);
  for (int i = 0; i < 5122; ++i) EXPECT_EQ(values[i], 0.0f);
  for (int i = 0; i < 5122; ++i) values[i] = 1;
  EXPECT_EQ(step(arena.tensors()), 0u);
  for (int i = 0; i < 5122; ++i) ASSERT_EQ(values[i], static_cast<float>(session.size()));
}

/// What nobody has seen before is fused at once.
inline void broadcast_for_the_first_time(Session& session) {
  const std::int64_t fusion_bytes = session.config().fusion_bytes;
  constexpr int count = 1000;
  std::vector<std::vector<float>> parameters;
  std::int64_t bytes = 0;
  for (int i = 0; i < count; ++i) {
    parameters.emplace_back(static_cast<std::size_t>(500 + i % 7), static_cast<float>(session.rank() == 0 ? i : -1));
    bytes += static_cast<std::int64_t>(parameters.back().size() * sizeof(float));
  }
  session.barrier();
  const auto before = session.stats();
  std::vector<Handle> handles;
  for (int i = 0; i < count; ++i)
    handles.push_back(
        session.broadcast_async("parameter " + std::to_string(i), view(parameters[static_cast<std::size_t>(i)])));
  for (Handle& handle : handles) handle.wait();
  const auto after = session.stats();
  const auto transfers = static_cast<std::uint64_t>((bytes + fusion_bytes - 1) / fusion_bytes);
  EXPECT_LE(after.buckets - before.buckets, transfers + 1);
  if (transfers == 1) {
    EXPECT_LE(after.agreements - before.agreements, 2u);
  }
  for (int i = 0; i < count; ++i) ASSERT_EQ(parameters[static_cast<std::size_t>(i)].back(), static_cast<float>(i));
  session.barrier();
}

}  // namespace kolo::testing
