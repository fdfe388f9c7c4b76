#pragma once

// What any backend must do, written once. A test file includes this, and instantiates BackendConformance with harnesses
// that play the ranks of one group:
//
//     INSTANTIATE_TEST_SUITE_P(Local, BackendConformance, testing::Values(…), name_of_harness);

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <ostream>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <kolo/backend.h>

#include "tests/element_types.h"
#include "tests/reference_reduce.h"

namespace kolo {

/// The ranks of one group under test, as threads or as processes.
class Harness {
 public:
  virtual ~Harness() = default;
  virtual int ranks() const = 0;
  /// Runs `body` for every rank that this process plays, each in a thread of its own, with that rank's backend.
  virtual void run(const std::function<void(int rank, Backend& backend)>& body) = 0;
};

struct HarnessFactory {
  std::string name;
  std::function<std::unique_ptr<Harness>()> make;
  int schedules;  ///< how many random schedules to try
};

/// For test names, which must not contain addresses.
inline void PrintTo(const HarnessFactory& factory, std::ostream* out) {
  *out << factory.name;
}

inline std::string name_of_harness(const testing::TestParamInfo<HarnessFactory>& info) {
  return info.param.name;
}

/// One collective, described equally on all ranks.
struct Call {
  Signature signature;
  std::vector<std::int64_t> sizes;  ///< elements of each tensor of the bucket
  bool in_place = true;
  std::uint64_t seed = 1;
};

inline Signature all_reduce_of(DType dtype, ReduceOp op, double prescale = 1, double postscale = 1) {
  return {OpKind::all_reduce, op, dtype, DeviceKind::cpu, 0, prescale, postscale, {}};
}
inline Signature broadcast_of(DType dtype, int root) {
  return {OpKind::broadcast, ReduceOp::sum, dtype, DeviceKind::cpu, root, 1, 1, {}};
}

/// Elements between guard bytes that nobody may change, at an address aligned to the element and to no more.
class GuardedArray {
 public:
  GuardedArray(std::size_t bytes, std::size_t shift) : begin_(guard + shift), bytes_(bytes) {
    storage_.assign(begin_ + bytes + guard, mark);
  }
  void* data() { return storage_.data() + begin_; }
  const void* data() const { return storage_.data() + begin_; }
  bool intact() const {
    const auto is_mark = [](std::byte value) { return value == mark; };
    return std::all_of(storage_.begin(), storage_.begin() + static_cast<std::ptrdiff_t>(begin_), is_mark) &&
           std::all_of(storage_.begin() + static_cast<std::ptrdiff_t>(begin_ + bytes_), storage_.end(), is_mark);
  }

 private:
  static constexpr std::size_t guard = 64;
  static constexpr std::byte mark{0xa5};
  std::size_t begin_;
  std::size_t bytes_;
  std::vector<std::byte> storage_;
};

/// One rank's memory for a call, and the operation on it.
class Job {
 public:
  Job(const Call& call, int rank, int ranks) : call_(call), rank_(rank), ranks_(ranks) {
    const std::size_t size = size_of(call_.signature.dtype);
    for (std::size_t t = 0; t < call_.sizes.size(); ++t) {
      const std::size_t bytes = static_cast<std::size_t>(call_.sizes[t]) * size;
      const std::size_t shift = (call_.seed + t + static_cast<std::size_t>(rank)) % 7 * size;
      inputs_.emplace_back(bytes, shift);
      if (!call_.in_place) outputs_.emplace_back(bytes, 3 * size);
      with_type(call_.signature.dtype, [&]<class T>() { fill<T>(t); });
    }
  }

  void start(Backend& backend) { operation_ = backend.start(bucket()); }
  bool step() { return operation_->step(); }
  void abandon() { operation_.reset(); }
  void finish() {
    while (!step()) std::this_thread::yield();
    operation_.reset();
  }

  /// Expects the result in the outputs, the inputs as they were (out of place), and the memory around both untouched.
  void verify() {
    for (std::size_t t = 0; t < call_.sizes.size(); ++t) {
      with_type(call_.signature.dtype, [&]<class T>() { verify_tensor<T>(t); });
      EXPECT_TRUE(inputs_[t].intact() && output(t).intact()) << text() << " wrote beside tensor " << t;
    }
  }

  std::string text() const {
    return fmt::format("{} of {} tensors, {} place, seed {}, rank {} of {}", to_string(call_.signature),
                       call_.sizes.size(), call_.in_place ? "in" : "out of", call_.seed, rank_, ranks_);
  }

 private:
  GuardedArray& output(std::size_t t) { return call_.in_place ? inputs_[t] : outputs_[t]; }

  Bucket bucket() {
    Bucket bucket{call_.signature, {}};
    for (std::size_t t = 0; t < call_.sizes.size(); ++t) {
      const Shape shape{call_.sizes[t]};
      const DType dtype = call_.signature.dtype;
      bucket.tensors.push_back({{inputs_[t].data(), shape, dtype, {}}, {output(t).data(), shape, dtype, {}}});
    }
    if (!bucket.tensors.empty()) bucket.signature.shape = bucket.tensors[0].in.shape;
    return bucket;
  }

  template <class T>
  T value(int rank, std::size_t t, std::int64_t i) const {
    return element_value<T>(call_.seed, static_cast<std::uint64_t>(rank), t, static_cast<std::uint64_t>(i));
  }

  template <class T>
  void fill(std::size_t t) {
    T* elements = static_cast<T*>(inputs_[t].data());
    for (std::int64_t i = 0; i < call_.sizes[t]; ++i) elements[i] = value<T>(rank_, t, i);
  }

  template <class T>
  T expected(std::size_t t, std::int64_t i) const {
    if (call_.signature.kind == OpKind::broadcast) return value<T>(call_.signature.root, t, i);
    std::array<T, 64> values;
    for (int rank = 0; rank < ranks_; ++rank) values[static_cast<std::size_t>(rank)] = value<T>(rank, t, i);
    return reference_reduce<T>(reduction_of(call_.signature, ranks_),
                               std::span<const T>(values).first(static_cast<std::size_t>(ranks_)));
  }

  template <class T>
  void verify_tensor(std::size_t t) {
    const T* in = static_cast<const T*>(inputs_[t].data());
    const T* out = static_cast<const T*>(output(t).data());
    for (std::int64_t i = 0; i < call_.sizes[t]; ++i) {
      const T wanted = expected<T>(t, i);
      const T before = value<T>(rank_, t, i);
      if (std::memcmp(&wanted, &out[i], sizeof(T)) != 0) {
        ADD_FAILURE() << text() << ": wrong element " << i << " of tensor " << t << " with " << call_.sizes[t];
        return;
      }
      if (!call_.in_place && std::memcmp(&before, &in[i], sizeof(T)) != 0) {
        ADD_FAILURE() << text() << ": input " << i << " of tensor " << t << " changed";
        return;
      }
    }
  }

  Call call_;
  int rank_;
  int ranks_;
  std::vector<GuardedArray> inputs_;
  std::vector<GuardedArray> outputs_;
  std::unique_ptr<Operation> operation_;  // last: dies before the memory that it uses
};

class BackendConformance : public testing::TestWithParam<HarnessFactory> {
 protected:
  BackendConformance() : harness_(GetParam().make()) {}

  int ranks() const { return harness_->ranks(); }

  void run(const std::function<void(int rank, Backend& backend)>& body) { harness_->run(body); }

  /// Runs the calls one after the other on all ranks and verifies each.
  void run_calls(const std::vector<Call>& calls) {
    run([&](int rank, Backend& backend) {
      for (const Call& call : calls) {
        EXPECT_TRUE(backend.supports(call.signature)) << to_string(call.signature);
        Job job(call, rank, ranks());
        job.start(backend);
        job.finish();
        job.verify();
      }
    });
  }

  /// Runs all calls at once: every rank starts them in order, but steps those in flight in an order of its own and
  /// pauses at random, so that ranks are at different places all the time.
  void run_schedule(const std::vector<Call>& calls, std::uint64_t seed) {
    run([&](int rank, Backend& backend) {
      std::mt19937_64 random(seed * 1000 + static_cast<std::uint64_t>(rank));
      std::vector<std::unique_ptr<Job>> running;
      std::size_t started = 0;
      while (started < calls.size() || !running.empty()) {
        if (started < calls.size() && random() % 2 == 0) {
          running.push_back(std::make_unique<Job>(calls[started++], rank, ranks()));
          running.back()->start(backend);
        }
        if (!running.empty()) {
          const std::size_t chosen = random() % running.size();
          if (running[chosen]->step()) {
            running[chosen]->verify();
            running.erase(running.begin() + static_cast<std::ptrdiff_t>(chosen));
          }
        }
        if (random() % 64 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 100));
        if (random() % 4 == 0) std::this_thread::yield();
      }
    });
  }

 private:
  std::unique_ptr<Harness> harness_;
};

TEST_P(BackendConformance, EveryOpTypeAndSize) {
  std::vector<Call> calls;
  for (const DType dtype : all_types) {
    for (const ReduceOp op : all_reduce_ops) {
      if (!reducible(op, dtype)) continue;
      for (const std::int64_t size : {0, 1, 3, 1000, 30'001}) {
        calls.push_back({all_reduce_of(dtype, op), {size}, calls.size() % 2 == 0, calls.size()});
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
      const auto operation = backend.start({all_reduce_of(DType::f32, op), {{view(values), view(values)}}});
      while (!operation->step()) std::this_thread::yield();
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
            {all_reduce_of(dtype, op, prescale, postscale), {17, 5001}, calls.size() % 2 == 0, calls.size()});
      }
    }
  }
  run_calls(calls);
}

TEST_P(BackendConformance, SeveralTensorsOfOddSizes) {
  std::vector<Call> calls;
  for (const DType dtype : {DType::f32, DType::f16, DType::i64, DType::u8}) {
    for (const bool in_place : {true, false}) {
      for (const auto& sizes : std::vector<std::vector<std::int64_t>>{
               {}, {0}, {0, 0, 0}, {1, 0, 3}, {1000, 0, 7, 65'537, 1, 255, 0}, {3, 200'001, 5, 1, 70'000, 70'001, 2}}) {
        calls.push_back({all_reduce_of(dtype, ReduceOp::average), sizes, in_place, calls.size()});
        calls.push_back({broadcast_of(dtype, ranks() - 1), sizes, in_place, calls.size()});
      }
    }
  }
  run_calls(calls);
}

TEST_P(BackendConformance, LargerThanASegment) {
  run_calls({{all_reduce_of(DType::f32, ReduceOp::sum), {3'000'001}, true, 1},
             {all_reduce_of(DType::f64, ReduceOp::average), {5, 1'500'001, 100, 300'000, 3}, false, 2},
             {all_reduce_of(DType::f16, ReduceOp::sum), std::vector<std::int64_t>(900, 4'999), true, 3},
             {broadcast_of(DType::i32, 0), {1, 2'500'001, 77, 500'001}, false, 4}});
}

TEST_P(BackendConformance, BroadcastsFromEveryRoot) {
  std::vector<Call> calls;
  for (int root = 0; root < ranks(); ++root) {
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::i64, DType::u8, DType::boolean}) {
      for (const std::int64_t size : {0, 1, 3, 1000, 100'003}) {
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
      const auto operation = backend.start({all_reduce_of(DType::f32, op), {{view(values), view(values)}}});
      while (!operation->step()) std::this_thread::yield();
      for (std::size_t i = 0; i < values.size(); ++i) {
        ASSERT_EQ(std::isnan(values[i]), i < static_cast<std::size_t>(ranks())) << i;
      }
    }
  });
}

/// Fusion must not show: the same elements in one tensor, or cut into many, give the same bits.
TEST_P(BackendConformance, BucketingDoesNotChangeBits) {
  constexpr std::int64_t elements = 400'000;
  run([&](int rank, Backend& backend) {
    std::vector<float> original(elements);
    for (std::size_t i = 0; i < elements; ++i) {
      original[i] = element_value<float>(9, static_cast<std::uint64_t>(rank), 0, i);
    }
    const auto reduced = [&](std::int64_t piece) {
      std::vector<float> values = original;
      Bucket bucket{all_reduce_of(DType::f32, ReduceOp::sum), {}};
      for (std::int64_t begin = 0; begin < elements; begin += piece) {
        const Tensor tensor = view(values.data() + begin, Shape{std::min(piece, elements - begin)});
        bucket.tensors.push_back({tensor, tensor});
      }
      const auto operation = backend.start(std::move(bucket));
      while (!operation->step()) std::this_thread::yield();
      return values;
    };
    const std::vector<float> whole = reduced(elements);
    for (const std::int64_t piece : {777, 4096, 100'000, 399'999}) {
      EXPECT_EQ(0, std::memcmp(whole.data(), reduced(piece).data(), elements * sizeof(float))) << piece;
    }
  });
}

inline std::vector<Call> random_calls(std::uint64_t seed, int ranks) {
  std::mt19937_64 random(seed);
  std::vector<Call> calls(20 + random() % 200);
  for (Call& call : calls) {
    const DType dtype = reducible_types[random() % reducible_types.size()];
    const int root = static_cast<int>(random() % static_cast<std::uint64_t>(ranks));
    call.signature = random() % 4 == 0 ? broadcast_of(dtype, root) : all_reduce_of(dtype, reduce_ops[random() % 5]);
    call.sizes.resize(random() % 5);
    const std::uint64_t largest = random() % 30 == 0 ? 300'000 : 300;
    for (std::int64_t& size : call.sizes) size = static_cast<std::int64_t>(random() % largest);
    call.in_place = random() % 2 == 0;
    call.seed = random() % 1000;
  }
  return calls;
}

TEST_P(BackendConformance, RandomSchedulesWithManyInFlight) {
  for (int i = 1; i <= GetParam().schedules; ++i) {
    const auto seed = static_cast<std::uint64_t>(i);
    SCOPED_TRACE(fmt::format("schedule {}", seed));
    run_schedule(random_calls(seed, ranks()), seed);
    if (HasFailure()) return;
  }
}

}  // namespace kolo
