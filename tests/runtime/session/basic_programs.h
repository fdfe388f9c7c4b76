#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include <kolo/session.h>

#include "tests/ops/kernels/element_types.h"
#include "tests/support/thread_ranks.h"

namespace kolo::testing {

// The main path, in closed form, for ranks as threads and as processes: steps that repeat and change, and wrong calls.

/// Elements are whole numbers in 1…3, times the number of ranks where they are averaged, so that every result is exact
/// in every type.
inline void reduce_every_type(Session& session) {
  const int n = session.size();
  int step = 0;
  for (const DType dtype : reducible_types) {
    for (const ReduceOp op : reduce_ops) {
      for (const std::size_t elements : {0u, 1u, 1000u}) {
        with_type(dtype, [&]<class T>() {
          std::vector<std::conditional_t<std::is_same_v<T, bool>, char, T>> values(elements), expected(elements);
          for (std::size_t i = 0; i < elements; ++i) {
            const auto value_of = [&](int rank) {
              return (1 + (static_cast<int>(i) + 7 * rank + step) % 3) * (op == ReduceOp::average ? n : 1);
            };
            int result = value_of(0);
            for (int rank = 1; rank < n; ++rank) {
              const int value = value_of(rank);
              result = op == ReduceOp::min       ? std::min(result, value)
                       : op == ReduceOp::max     ? std::max(result, value)
                       : op == ReduceOp::product ? result * value
                                                 : result + value;
            }
            values[i] = from_double<T>(value_of(session.rank()));
            expected[i] = from_double<T>(op == ReduceOp::average ? result / n : result);
          }
          const Tensor tensor{values.data(), Shape{static_cast<std::int64_t>(elements)}, dtype, {}};
          session.all_reduce("t", tensor, {.op = op});
          ASSERT_EQ(values == expected, true) << to_string(dtype) << " " << to_string(op) << " " << elements;
        });
        ++step;
      }
    }
  }
}

/// Many tensors in each step; in one step some are missing, in another one has a new shape.
inline void change_steps(Session& session) {
  const int n = session.size(), tensors = 60;
  for (int step = 0; step < 8; ++step) {
    const auto submitted = [&](int i) { return step != 3 || i % 10 != 0; };
    std::vector<std::vector<float>> grads;
    std::vector<Handle> handles(tensors);
    for (int i = 0; i < tensors; ++i) {
      const int count = step == 5 && i == 7 ? 3 : 1 + i * 11;
      grads.emplace_back(static_cast<std::size_t>(count), static_cast<float>((session.rank() + 1) * (i + step)));
    }
    for (std::size_t i = 0; i < tensors; ++i) {
      if (submitted(static_cast<int>(i))) handles[i] = session.all_reduce_async(fmt::format("g{}", i), view(grads[i]));
    }
    for (Handle& handle : handles) handle.wait();
    for (int i = 0; i < tensors; ++i) {
      const int factor = submitted(i) ? n * (n + 1) / 2 : session.rank() + 1;
      for (const float value : grads[static_cast<std::size_t>(i)])
        ASSERT_EQ(value, static_cast<float>(factor * (i + step))) << "g" << i << " in step " << step;
    }
  }
}

inline void broadcast_from_every_root(Session& session) {
  for (int root = 0; root < session.size(); ++root) {
    std::vector<std::int64_t> values(5000, session.rank() * 100);
    session.broadcast("weights", view(values), {.root = root});
    ASSERT_EQ(values, std::vector<std::int64_t>(5000, root * 100));
    session.barrier();
  }
}

/// A name serves one kind of operation after the other.
inline void reuse_a_name(Session& session) {
  const int n = session.size();
  for (int round = 0; round < 4; ++round) {
    std::vector<float> values(static_cast<std::size_t>(n * (1 + round)), 1), part(static_cast<std::size_t>(1 + round));
    session.all_reduce("x", view(values));
    EXPECT_EQ(values, std::vector<float>(values.size(), static_cast<float>(n)));
    session.reduce_scatter("x", view(values), view(part));
    EXPECT_EQ(part, std::vector<float>(part.size(), static_cast<float>(n * n)));
    std::vector<std::int64_t> whole(static_cast<std::size_t>(n), session.rank()), one(1, session.rank());
    session.broadcast("x", view(whole), {.root = n - 1});
    session.all_to_all("x", view(whole), view(whole));
    session.all_gather("x", view(one), view(whole));
    for (int r = 0; r < n; ++r) EXPECT_EQ(whole[static_cast<std::size_t>(r)], r);
  }
}

/// What is wrong on the last rank alone is the same error on all, at once, and leaves the tensors as they were. Before,
/// between and after, the name and another one work: also once they are planned into one bucket.
inline void agree_on_wrong_arguments(Session& session) {
  using Call = std::function<Handle(const std::string& name, std::vector<float>& values, bool wrong)>;
  const int n = session.size(), last = n - 1;
  int calls = 0;
  const auto expect = [&](const char* operation, const std::string& problem, const Call& call) {
    const std::string name = fmt::format("x{}", ++calls), other = fmt::format("y{}", calls);
    for (int round = 0; round < 4; ++round) {
      std::vector<float> values(4, 1), more(4, 1);
      const auto start = std::chrono::steady_clock::now();
      EXPECT_EQ(error_text([&] { call(name, values, session.rank() == last).wait(); }, ErrorCode::invalid_argument),
                fmt::format("{} '{}' in group world: rank {}: {}", operation, name, last, problem));
      EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
      EXPECT_EQ(values, std::vector<float>(4, 1)) << "untouched";
      Handle x = session.all_reduce_async(name, view(values)), y = session.all_reduce_async(other, view(more));
      x.wait();
      y.wait();
      EXPECT_EQ(values, std::vector<float>(4, static_cast<float>(n)));
    }
  };
  expect("all_reduce", "the tensor's memory is a null pointer (its shape is [4])",
         [&](const std::string& name, std::vector<float>& values, bool wrong) {
           Tensor tensor = view(values);
           if (wrong) tensor.data = nullptr;
           return session.all_reduce_async(name, tensor);
         });
  expect("broadcast", fmt::format("root -1 is not a rank of the group (it has {}, from 0)", n),
         [&](const std::string& name, std::vector<float>& values, bool wrong) {
           return session.broadcast_async(name, view(values), {.root = wrong ? -1 : 0});
         });
  expect("all_reduce", "input and output differ (in: f32[4] on cpu; out: f32[3] on cpu); pass two tensors of one kind",
         [&](const std::string& name, std::vector<float>& values, bool wrong) {
           return session.all_reduce_async(session.declare(name), view(values),
                                           view(values.data(), Shape{wrong ? 3 : 4}));
         });
  for (const std::size_t dims : {9u, 300u}) {
    expect("all_reduce", fmt::format("the tensor has {} dimensions (at most 8 work); reshape it", dims),
           [&](const std::string& name, std::vector<float>& values, bool wrong) {
             const std::vector<std::int64_t> extents(dims, 1);
             return session.all_reduce_async(name, wrong ? view(values.data(), Shape(extents)) : view(values));
           });
  }
  expect("all_reduce", "no backend of the session runs all_reduce(sum) f32[4] on cuda",
         [&](const std::string& name, std::vector<float>& values, bool wrong) {
           Tensor tensor = view(values);
           if (wrong) tensor.device.kind = DeviceKind::cuda;
           return session.all_reduce_async(name, tensor);
         });
}

}  // namespace kolo::testing
