#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <kolo/session.h>

#include "ops/adasum/adasum.h"
#include "runtime/types/rank_set.h"
#include "tests/ops/adasum/reference_adasum.h"
#include "tests/ops/kernels/reference_reduce.h"
#include "tests/support/thread_ranks.h"

namespace kolo::testing {

/// Programs over adasum with expectations by the formula, for ranks as threads and as processes.

inline constexpr std::array float_types{DType::f64, DType::f32, DType::f16, DType::bf16};

/// Element i of tensor t of rank r: vectors of different lengths, neither parallel nor orthogonal.
template <class T>
T adasum_input(int rank, std::size_t tensor, std::size_t i) {
  const double common = element_value<double>(5, 1000, tensor, i);
  const double own = element_value<double>(5, static_cast<std::uint64_t>(rank), tensor, i);
  return from_double<T>((common + own) * (1 + rank % 3) / 4);
}

/// This rank's tensors of one type, and what they must become.
template <class T>
struct AdasumTensors {
  AdasumTensors(int rank, std::vector<std::size_t> lengths) : sizes(std::move(lengths)) {
    for (std::size_t t = 0; t < sizes.size(); ++t) {
      in.emplace_back();
      for (std::size_t i = 0; i < sizes[t]; ++i) in[t].push_back(adasum_input<T>(rank, t, i));
      out.emplace_back(sizes[t], from_double<T>(-77));
    }
  }

  std::vector<BucketTensor> tensors(bool in_place) {
    std::vector<BucketTensor> tensors;
    for (std::size_t t = 0; t < sizes.size(); ++t) tensors.push_back({view(in[t]), view(in_place ? in[t] : out[t])});
    return tensors;
  }

  void expect_results(int rank, int ranks, bool in_place, double scale, const std::string& what) const {
    for (std::size_t t = 0; t < sizes.size(); ++t) {
      const LongVector exact = expected(t, ranks);
      const auto& found = in_place ? in[t] : out[t];
      for (std::size_t i = 0; i < sizes[t]; ++i) {
        const long double wanted = scale * exact[i];
        ASSERT_LE(std::abs(to_long(found[i]) - wanted), tolerance<T>(wanted, 2))
            << what << ": element " << i << " of tensor " << t;
        if (in_place) continue;
        ASSERT_EQ(in[t][i], adasum_input<T>(rank, t, i)) << what << ": input " << i << " of tensor " << t;
      }
    }
  }

  static LongVector expected(std::size_t tensor, std::size_t size, int ranks) {
    std::vector<LongVector> vectors;
    for (int rank = 0; rank < ranks; ++rank) {
      vectors.emplace_back();
      for (std::size_t i = 0; i < size; ++i) vectors.back().push_back(to_long(adasum_input<T>(rank, tensor, i)));
    }
    return reference_adasum(std::move(vectors));
  }
  LongVector expected(std::size_t tensor, int ranks) const { return expected(tensor, sizes[tensor], ranks); }

  std::vector<std::size_t> sizes;
  std::vector<std::vector<T>> in, out;
};

inline Bucket bucket_of(const Signature& signature, std::vector<BucketTensor> tensors) {
  return {signature, std::move(tensors)};
}

inline void finish(Operation& operation) {
  while (!operation.step()) std::this_thread::yield();
}

/// Expects the same bytes on every rank.
inline void expect_same_everywhere(Backend& backend, const void* data, std::size_t bytes, const std::string& what) {
  const auto* begin = static_cast<const std::uint8_t*>(data);
  const std::vector<std::uint8_t> mine(begin, begin + bytes);
  for (const ReduceOp op : {ReduceOp::bit_and, ReduceOp::bit_or}) {
    std::vector<std::uint8_t> all = mine;
    const Bucket bucket = bucket_of({.op = op, .dtype = DType::u8, .shape = view(all).shape}, {{view(all), view(all)}});
    finish(*backend.start(bucket));
    EXPECT_EQ(all == mine, true) << what << " differs between ranks";
  }
}

template <class T>
Signature adasum_of_type(double prescale = 1, double postscale = 1) {
  return {.kind = OpKind::all_reduce,
          .op = ReduceOp::adasum,
          .dtype = DTypeOf<T>::value,
          .prescale = prescale,
          .postscale = postscale};
}

inline const std::vector<std::vector<std::size_t>>& adasum_sizes() {
  static const std::vector<std::vector<std::size_t>> sizes{
      {}, {0}, {0, 0}, {1}, {3}, {64}, {1000}, {9'001}, {1, 0, 2, 777, 0, 4096, 5'003}};
  return sizes;
}

/// Buckets of every float type and of many shapes.
inline void run_adasum_buckets(Backend& backend, int ranks, int rank) {
  for (const DType dtype : float_types) {
    for (const auto& sizes : adasum_sizes()) {
      for (const bool in_place : {true, false}) {
        with_type(dtype, [&]<class T>() {
          if constexpr (!std::is_integral_v<T>) {
            const auto what = fmt::format("{} x{}, {} place, rank {} of {}", to_string(dtype), sizes.size(),
                                          in_place ? "in" : "out of", rank, ranks);
            AdasumTensors<T> tensors(rank, sizes);
            const Signature signature = in_place ? adasum_of_type<T>() : adasum_of_type<T>(0.5, 3);
            ASSERT_TRUE(serves_adasum(backend, signature));
            const auto operation = start_adasum(backend, {signature, tensors.tensors(in_place)}, ranks, rank);
            finish(*operation);
            EXPECT_FALSE(operation->holds_backend());
            tensors.expect_results(rank, ranks, in_place, in_place ? 1 : 1.5, what);
            for (const auto& found : in_place ? tensors.in : tensors.out) {
              expect_same_everywhere(backend, found.data(), found.size() * sizeof(T), what);
            }
          }
        });
      }
    }
  }
}

/// Fusion must not show: each tensor of a bucket has the bits that it gets alone.
inline void run_adasum_fused_and_not(Backend& backend, int ranks, int rank) {
  for (const DType dtype : float_types) {
    with_type(dtype, [&]<class T>() {
      if constexpr (!std::is_integral_v<T>) {
        AdasumTensors<T> fused(rank, {5, 1000, 12'011, 1}), alone = fused;
        finish(*start_adasum(backend, {adasum_of_type<T>(), fused.tensors(false)}, ranks, rank));
        for (const BucketTensor& tensor : alone.tensors(false)) {
          finish(*start_adasum(backend, {adasum_of_type<T>(), {tensor}}, ranks, rank));
        }
        for (std::size_t t = 0; t < fused.out.size(); ++t) {
          EXPECT_EQ(fused.out[t] == alone.out[t], true) << to_string(dtype) << ", tensor " << t;
        }
      }
    });
  }
}

/// Between operations that were started before it and are started as soon as it lets them.
inline void run_adasum_among_others(Backend& backend, int ranks, int rank) {
  for (int round = 0; round < 20; ++round) {
    std::vector<float> before(3000, 1), after(5000, 2);
    AdasumTensors<float> tensors(rank, {700, 1 + static_cast<std::size_t>(round) * 1000});
    const Bucket ones = bucket_of({}, {{view(before), view(before)}}),
                 twos = bucket_of({}, {{view(after), view(after)}});
    const auto first = backend.start(ones);
    const auto operation = start_adasum(backend, {adasum_of_type<float>(), tensors.tensors(true)}, ranks, rank);
    while (operation->holds_backend()) {
      if (round % 2 == 0) (void)first->step();
      (void)operation->step();
      std::this_thread::yield();
    }
    const auto last = backend.start(twos);
    finish(*last);
    finish(*operation);
    finish(*first);
    tensors.expect_results(rank, ranks, true, 1, "among others");
    EXPECT_EQ(before, std::vector<float>(3000, static_cast<float>(ranks)));
    EXPECT_EQ(after, std::vector<float>(5000, static_cast<float>(2 * ranks)));
  }
}

/// The same tensors in many steps, with operations of other kinds in flight around them; fused once they are planned.
inline void run_adasum_steps(Session& session, const Group& group = {}) {
  const GroupInfo& info = *(group.info() ? group : session.world()).info();
  const auto ranks = info.size(), rank = info.rank;
  std::vector<std::vector<float>> first_results;
  for (int step = 0; step < 8; ++step) {
    AdasumTensors<float> wide(rank, {3, 2000, 0, 6'000});
    AdasumTensors<BFloat16> narrow(rank, {900, 5});
    std::vector<std::vector<float>> sums(4, std::vector<float>(2000, 1)),
        copies(4, std::vector<float>(100, static_cast<float>(rank)));
    std::vector<Handle> handles;
    for (std::size_t t = 0; t < 4; ++t) {
      const std::string name = std::to_string(t);
      handles.push_back(session.all_reduce_async("sum" + name, view(sums[t]), {.group = group}));
      handles.push_back(session.all_reduce_async(session.declare("adasum" + name), view(wide.in[t]), view(wide.out[t]),
                                                 {.op = ReduceOp::adasum, .group = group}));
      handles.push_back(session.broadcast_async("copy" + name, view(copies[t]), {.root = ranks - 1, .group = group}));
      if (t < 2) {
        handles.push_back(
            session.all_reduce_async("narrow" + name, view(narrow.in[t]),
                                     {.op = ReduceOp::adasum, .group = group, .prescale = 0.25, .postscale = 2}));
      }
      if (step % 3 == 1 && t == 1) handles[1].wait();
      if (step % 3 == 2 && t == 2) session.barrier(group);
    }
    for (Handle& handle : handles) handle.wait();
    wide.expect_results(rank, ranks, false, 1, fmt::format("step {}", step));
    narrow.expect_results(rank, ranks, true, 0.5, fmt::format("step {}", step));
    for (const auto& values : sums) EXPECT_EQ(values, std::vector<float>(2000, static_cast<float>(ranks)));
    for (const auto& values : copies) EXPECT_EQ(values, std::vector<float>(100, static_cast<float>(ranks - 1)));
    if (step == 0) first_results = wide.out;  // before anything was fused
    EXPECT_EQ(wide.out == first_results, true) << "step " << step << ": other bits than unfused";
  }
}

inline void run_adasum_errors(Session& session) {
  const std::string everybody = to_string(RankSet::range(0, session.size()));
  std::vector<std::int32_t> numbers(4, 1);
  EXPECT_EQ(error_text([&] { session.all_reduce("n", view(numbers), {.op = ReduceOp::adasum}); },
                       ErrorCode::invalid_argument),
            "all_reduce 'n' in group world: " + everybody +
                ": adasum of i32 is not defined (it multiplies tensors by fractions); use a floating-point type");
  std::vector<float> values(4, 1);
  EXPECT_EQ(
      error_text([&] { session.reduce("r", view(values), {.op = ReduceOp::adasum}); }, ErrorCode::invalid_argument),
      "reduce 'r' in group world: " + everybody +
          ": reduce does not work with adasum (only all_reduce does); use all_reduce");
  session.all_reduce("r", view(values), {.op = ReduceOp::adasum});
  EXPECT_EQ(values, std::vector<float>(4, 1)) << "the average of what is equal";
}

inline void run_adasum_session(Session& session) {
  run_adasum_steps(session);
  run_adasum_errors(session);
  run_adasum_steps(session, session.split(session.rank() % 2));
}

}  // namespace kolo::testing
