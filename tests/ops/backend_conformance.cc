// The suites that every backend has to pass, on the harnesses that a program instantiates them for.

#include "tests/ops/backend_conformance.h"

namespace kolo {

TEST_P(BackendConformance, EveryOpTypeAndSize) {
  std::vector<Call> calls;
  for (const DType dtype : all_types) {
    for (const ReduceOp op : all_reduce_ops) {
      if (!reducible(op, dtype)) continue;
      for (const std::int64_t size : std::initializer_list<std::int64_t>{0, 1, 3, 1000, large(30'001)}) {
        calls.push_back({all_reduce_of(dtype, op), {size}, calls.size() % 2 == 0, calls.size()});
      }
    }
  }
  run_calls(calls);
}

constexpr std::array kinds_with_blocks{OpKind::all_gather, OpKind::reduce_scatter, OpKind::all_to_all, OpKind::gather,
                                       OpKind::scatter};

/// Fewer rows than ranks, as many, more, and more than a chunk of the wire; rows of one element and of several.
TEST_P(BackendConformance, EveryOperationTypeAndShape) {
  std::vector<Call> calls;
  for (const OpKind kind : {OpKind::reduce, OpKind::all_gather, OpKind::reduce_scatter, OpKind::all_to_all,
                            OpKind::gather, OpKind::scatter, OpKind::broadcast}) {
    for (const DType dtype : all_types) {
      const ReduceOp op = dtype == DType::boolean ? ReduceOp::bit_xor : ReduceOp::average;
      for (const std::int64_t rows : std::initializer_list<std::int64_t>{0, 1, 2, 3, 5, large(3'007)}) {
        for (const std::int64_t width : {1, 3}) {
          for (const bool in_place : {true, false}) {
            const int root = static_cast<int>(calls.size() / 2) % ranks();
            calls.push_back({signature_of(kind, dtype, op, root), {rows}, in_place, calls.size() / 3, width});
          }
        }
      }
    }
  }
  run_calls(calls);
}

TEST_P(BackendConformance, EveryOpOfReduceAndReduceScatter) {
  std::vector<Call> calls;
  for (const OpKind kind : {OpKind::reduce, OpKind::reduce_scatter}) {
    for (const DType dtype : all_types) {
      for (const ReduceOp op : all_reduce_ops) {
        if (!reducible(op, dtype)) continue;
        Signature signature = signature_of(kind, dtype, op, static_cast<int>(calls.size()) % ranks());
        if (scalable(op, dtype)) signature.prescale = 0.5, signature.postscale = 3;
        calls.push_back({signature, {1001, 0, 3, large(5'003)}, calls.size() % 2 == 0, calls.size() / 2});
      }
    }
  }
  run_calls(calls);
}

TEST_P(BackendConformance, BlocksOfSeveralTensors) {
  std::vector<Call> calls;
  for (const OpKind kind : kinds_with_blocks) {
    for (const DType dtype : {DType::f16, DType::i64}) {
      for (const bool in_place : {true, false}) {
        for (const auto& sizes :
             std::vector<std::vector<std::int64_t>>{{},
                                                    {0},
                                                    {0, 0, 0},
                                                    {1, 0, 3},
                                                    {1000, 0, 7, large(9'537), 1, 255, 0},
                                                    {3, large(30'001), 5, 1, large(10'000), large(10'001), 2}}) {
          const int root = static_cast<int>(calls.size()) % ranks();
          calls.push_back({signature_of(kind, dtype, ReduceOp::sum, root), sizes, in_place, calls.size()});
          calls.push_back({signature_of(kind, dtype, ReduceOp::sum, root), sizes, in_place, calls.size(), 5});
        }
      }
    }
  }
  run_calls(calls);
}

TEST_P(BackendConformance, BlocksLargerThanAChunk) {
  std::vector<Call> calls;
  for (const OpKind kind : kinds_with_blocks) {
    for (const bool in_place : {true, false}) {
      const int root = ranks() - 1;
      calls.push_back({signature_of(kind, DType::f32, ReduceOp::sum, root), {large(700'001)}, in_place, 1});
      calls.push_back(
          {signature_of(kind, DType::f64, ReduceOp::average, root), {5, large(50'001), 100, 3}, in_place, 2, 7});
    }
  }
  calls.push_back({signature_of(OpKind::reduce, DType::f32, ReduceOp::sum, ranks() - 1), {large(3'000'001)}, true, 3});
  calls.push_back({signature_of(OpKind::reduce, DType::f32, ReduceOp::sum), {3, large(2'000'001), 7}, false, 4});
  run_calls(calls);
}

/// Ranks decide for themselves whether they work in place.
TEST_P(BackendConformance, SomeRanksInPlace) {
  run([&](int rank, Backend& backend) {
    for (const OpKind kind : {OpKind::all_reduce, OpKind::reduce, OpKind::all_gather, OpKind::reduce_scatter,
                              OpKind::all_to_all, OpKind::gather, OpKind::scatter}) {
      for (int places = 0; places < 1 << ranks(); ++places) {
        run_call({signature_of(kind, DType::i32), {777, 5}, (places >> rank & 1) != 0, 6}, rank, backend);
      }
    }
  });
}

/// Ranks with blocks of their own sizes, empty ones among them, alone and in buckets.
TEST_P(BackendConformance, UnevenBlocks) {
  std::vector<Call> calls;
  for (const OpKind kind : {OpKind::all_gather, OpKind::gather, OpKind::all_to_all}) {
    for (const DType dtype : all_types) {
      for (const auto& sizes : std::vector<std::vector<std::int64_t>>{
               {0}, {1}, {5}, {large(3'007)}, {1, 0, 12, 3}, {1'000, 0, 7, large(20'001), 1}}) {
        for (const bool in_place : {true, false}) {
          const int root = static_cast<int>(calls.size() / 2) % ranks();
          const std::int64_t width = calls.size() % 3 == 0 ? 3 : 1;
          calls.push_back(
              {signature_of(kind, dtype, ReduceOp::sum, root), sizes, in_place, calls.size() / 3, width, true});
        }
      }
    }
  }
  calls.push_back({signature_of(OpKind::all_gather, DType::f32), {large(700'001), 3}, false, 5, 2, true});
  calls.push_back({signature_of(OpKind::all_to_all, DType::f32), {large(400'001), 3}, false, 6, 2, true});
  run_calls(calls);
}

/// Ranks that have joined lend a hand, and their values count for nothing.
TEST_P(BackendConformance, AbsentRanks) {
  std::vector<Call> calls;
  for (int present = 0; present < ranks(); ++present) {
    for (const bool one_absent : {true, false}) {  // all but this rank; or its neighbour alone
      std::vector<int> absent;
      for (int rank = 0; rank < ranks(); ++rank) {
        if (one_absent ? rank == (present + 1) % ranks() && rank != present : rank != present) absent.push_back(rank);
      }
      for (const OpKind kind : {OpKind::all_reduce, OpKind::reduce, OpKind::reduce_scatter, OpKind::broadcast,
                                OpKind::scatter, OpKind::all_gather, OpKind::gather, OpKind::all_to_all}) {
        for (const ReduceOp op : all_reduce_ops) {
          if (op != ReduceOp::sum && !reduces(kind)) continue;
          for (const DType dtype : {DType::f32, DType::bf16, DType::i64, DType::boolean}) {
            if (reduces(kind) && !reducible(op, dtype)) continue;
            for (const std::int64_t size : std::initializer_list<std::int64_t>{1, large(5'003)}) {
              Call call{signature_of(kind, dtype, op, present), {size, 3}, calls.size() % 2 == 0, calls.size()};
              call.absent = absent;
              if (scalable(op, dtype)) call.signature.prescale = -2;
              call.signature.divide_by_group = calls.size() % 3 == 0;
              calls.push_back(call);
            }
          }
        }
      }
    }
  }
  run_calls(calls);
}

TEST_P(BackendConformance, ClosedForms) {
  run([&](int rank, Backend& backend) {
    const int n = ranks();
    double factorial = 1;
    for (int i = 2; i <= n; ++i) factorial *= i;
    const std::vector<std::pair<ReduceOp, double>> expectations{{ReduceOp::sum, n * (n + 1) / 2.0},
                                                                {ReduceOp::average, (n + 1) / 2.0},
                                                                {ReduceOp::min, 1},
                                                                {ReduceOp::max, n},
                                                                {ReduceOp::product, factorial}};
    for (const auto& [op, expected] : expectations) {
      std::vector<float> values(1000, static_cast<float>(rank + 1));
      all_reduce(backend, rank, op, {values});
      for (const float value : values) ASSERT_EQ(value, static_cast<float>(expected)) << to_string(op);
    }
  });
}

TEST_P(BackendConformance, Scales) {
  std::vector<Call> calls;
  for (const DType dtype : reducible_types) {
    for (const ReduceOp op : reduce_ops) {
      for (const auto& [prescale, postscale] : {std::pair{0.5, 1.0}, {1.0, 3.0}, {0.1, 0.3}}) {
        calls.push_back(
            {all_reduce_of(dtype, op, prescale, postscale), {17, large(5001)}, calls.size() % 2 == 0, calls.size()});
      }
    }
  }
  run_calls(calls);
}

TEST_P(BackendConformance, SeveralTensorsOfOddSizes) {
  std::vector<Call> calls;
  for (const DType dtype : {DType::f32, DType::f16, DType::i64, DType::u8}) {
    for (const bool in_place : {true, false}) {
      for (const auto& sizes :
           std::vector<std::vector<std::int64_t>>{{},
                                                  {0},
                                                  {0, 0, 0},
                                                  {1, 0, 3},
                                                  {1000, 0, 7, large(65'537), 1, 255, 0},
                                                  {3, large(200'001), 5, 1, large(70'000), large(70'001), 2}}) {
        calls.push_back({all_reduce_of(dtype, ReduceOp::average), sizes, in_place, calls.size()});
        calls.push_back({broadcast_of(dtype, ranks() - 1), sizes, in_place, calls.size()});
      }
    }
  }
  run_calls(calls);
}

TEST_P(BackendConformance, LargerThanAChunk) {
  run_calls(
      {{all_reduce_of(DType::f32, ReduceOp::sum), {large(3'000'001)}, true, 1},
       {all_reduce_of(DType::f64, ReduceOp::average), {5, large(1'500'001), 100, large(300'000), 3}, false, 2},
       {all_reduce_of(DType::f16, ReduceOp::sum), std::vector<std::int64_t>(sanitized ? 90 : 900, 4'999), true, 3},
       {broadcast_of(DType::i32, 0), {1, large(2'500'001), 77, large(500'001)}, false, 4}});
}

TEST_P(BackendConformance, BroadcastsFromEveryRoot) {
  std::vector<Call> calls;
  for (int root = 0; root < ranks(); ++root) {
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::i64, DType::u8, DType::boolean}) {
      for (const std::int64_t size : std::initializer_list<std::int64_t>{0, 1, 3, 1000, large(100'003)}) {
        calls.push_back({broadcast_of(dtype, root), {size, 5}, calls.size() % 2 == 0, calls.size()});
      }
    }
  }
  run_calls(calls);
}

TEST_P(BackendConformance, MinAndMaxPropagateNaN) {
  run([&](int rank, Backend& backend) {
    for (const ReduceOp op : {ReduceOp::min, ReduceOp::max}) {
      std::vector<float> values(5000, static_cast<float>(rank));
      values[static_cast<std::size_t>(rank)] = std::numeric_limits<float>::quiet_NaN();
      all_reduce(backend, rank, op, {values});
      for (std::size_t i = 0; i < values.size(); ++i) {
        ASSERT_EQ(std::isnan(values[i]), i < static_cast<std::size_t>(ranks())) << i;
      }
    }
  });
}

/// Fusion must not show: the same elements in one tensor, or cut into many, give the same bits.
TEST_P(ExactConformance, BucketingDoesNotChangeBits) {
  const std::int64_t elements = large(400'000);
  const auto count = static_cast<std::size_t>(elements);
  run([&](int rank, Backend& backend) {
    std::vector<float> original(count);
    for (std::size_t i = 0; i < count; ++i) {
      original[i] = element_value<float>(9, static_cast<std::uint64_t>(rank), 0, i);
    }
    const auto reduced = [&](std::int64_t piece) {
      std::vector<float> values = original;
      std::vector<std::span<float>> tensors;
      for (std::int64_t begin = 0; begin < elements; begin += piece) {
        tensors.emplace_back(values.data() + begin, static_cast<std::size_t>(std::min(piece, elements - begin)));
      }
      all_reduce(backend, rank, ReduceOp::sum, tensors);
      return values;
    };
    const std::vector<float> whole = reduced(elements);
    for (const std::int64_t piece : std::initializer_list<std::int64_t>{777, 4096, large(100'000), large(399'999)}) {
      EXPECT_EQ(0, std::memcmp(whole.data(), reduced(piece).data(), count * sizeof(float))) << piece;
    }
  });
}

std::vector<Call> random_calls(std::uint64_t seed, int ranks, std::uint64_t most) {
  constexpr std::array kinds{OpKind::all_reduce, OpKind::all_reduce, OpKind::broadcast,
                             OpKind::reduce,     OpKind::all_gather, OpKind::reduce_scatter,
                             OpKind::all_to_all, OpKind::gather,     OpKind::scatter};
  std::mt19937_64 random(seed);
  std::vector<Call> calls(20 + random() % most);
  for (Call& call : calls) {
    const DType dtype = reducible_types[random() % reducible_types.size()];
    const int root = static_cast<int>(random() % static_cast<std::uint64_t>(ranks));
    call.signature =
        signature_of(kinds[random() % kinds.size()], dtype, reduce_ops[random() % reduce_ops.size()], root);
    call.sizes.resize(random() % 5);
    const std::uint64_t largest = random() % 30 == 0 ? large(300'000) : 300;
    for (std::int64_t& size : call.sizes) size = static_cast<std::int64_t>(random() % largest);
    call.in_place = random() % 2 == 0;
    call.seed = random() % 1000;
    call.width = random() % 4 == 0 ? 3 : 1;
  }
  return calls;
}

TEST_P(BackendConformance, RandomSchedulesWithManyInFlight) {
  for (int i = 1; i <= GetParam().schedules; ++i) {
    const auto seed = static_cast<std::uint64_t>(i);
    SCOPED_TRACE(fmt::format("schedule {}", seed));
    run_schedule(random_calls(seed, ranks(), GetParam().shrinks < 100 ? 200 : 40), seed);  // of many chunks each: fewer
    if (HasFailure()) return;
  }
}

}  // namespace kolo
