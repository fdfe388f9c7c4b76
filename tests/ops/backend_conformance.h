#pragma once

// What any backend must do, written once (backend_conformance.cc). A test file includes this, and instantiates
// BackendConformance with harnesses that play the ranks of one group:
//
//     INSTANTIATE_TEST_SUITE_P(Local, BackendConformance, ::testing::Values(…), name_of_harness);
//
// and ExactConformance with those that give the bits of rank order.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <chrono>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <memory>
#include <ostream>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <kolo/backend.h>

#include "ops/bucket.h"
#include "ops/gpu/gpu.h"
#include "ops/host/doorbell.h"
#include "tests/ops/kernels/element_types.h"
#include "tests/ops/kernels/reference_reduce.h"
#include "tests/support/environment.h"

namespace kolo {

/// The ranks of one group under test, as threads or as processes.
class Harness {
 public:
  virtual ~Harness() = default;
  virtual int ranks() const = 0;
  /// The ranks of each node, in the order of their lowest ones, if sums are taken within nodes first.
  virtual std::vector<std::vector<int>> nodes() const { return {}; }
  /// Likewise the ranks at each cache, of one node, if sums are taken there first.
  virtual std::vector<std::vector<int>> domains() const { return {}; }
  /// Runs `body` for every rank that this process plays, each in a thread of its own, with that rank's backend.
  virtual void run(const std::function<void(int rank, Backend& backend)>& body) = 0;
  /// Whether tensors lie in the backend's memory.
  virtual bool uses_memory() const { return false; }
  /// Where they lie; null: in memory that nobody has allocated for them.
  virtual MemorySource* memory_of(Backend& backend) const { return uses_memory() ? backend.memory().get() : nullptr; }
  /// Where tensors of a rank lie.
  virtual Device device(int rank) const {
    (void)rank;
    return {};
  }
  /// Whether reductions of floats give the bits of reference_reduce(), or others within the rounding of their
  /// additions.
  virtual bool exact() const { return true; }
};

struct HarnessFactory {
  std::string name;
  std::function<std::unique_ptr<Harness>()> make;
  int schedules;           ///< how many random schedules to try
  int shrinks = 1;         ///< by what sizes are divided that are to be large: where chunks are small
  std::size_t one_of = 1;  ///< every one_of-th of the calls that differ in type or shape is run: where each takes long
};

/// For test names, which must not contain addresses.
inline void PrintTo(const HarnessFactory& factory, std::ostream* out) {
  *out << factory.name;
}

inline std::string name_of_harness(const ::testing::TestParamInfo<HarnessFactory>& info) {
  return info.param.name;
}

/// One collective, described equally on all ranks.
struct Call {
  Signature signature;
  std::vector<std::int64_t> sizes;  ///< rows of each tensor of the bucket; of each block for all_to_all
  bool in_place = true;
  std::uint64_t seed = 1;
  std::int64_t width = 1;  ///< elements of a row
  bool uneven = false;     ///< of what has_rows(): every rank has blocks of its own sizes
  std::vector<int> absent{};
  std::vector<std::vector<int>> nodes{};    ///< sums are taken within these first; empty: over all ranks at once
  std::vector<std::vector<int>> domains{};  ///< likewise, and the results added in their order
  bool exact = true;

  /// Rows of the block of tensor `t` that `from` has for `to`.
  std::int64_t rows(std::size_t t, int from, int to) const {
    if (std::ranges::binary_search(absent, from) && has_rows(signature.kind)) return 0;
    if (!uneven) return sizes[t];
    return (sizes[t] * (1 + from) + 7 * (signature.kind == OpKind::all_to_all ? to : 0)) % (sizes[t] + 1);
  }
  bool equal_blocks() const { return !uneven && (absent.empty() || !has_rows(signature.kind)); }
};

inline Signature all_reduce_of(DType dtype, ReduceOp op, double prescale = 1, double postscale = 1) {
  return {OpKind::all_reduce, op, dtype, DeviceKind::cpu, 0, prescale, postscale, {}};
}
inline Signature broadcast_of(DType dtype, int root) {
  return {OpKind::broadcast, ReduceOp::sum, dtype, DeviceKind::cpu, root, 1, 1, {}};
}
inline Signature signature_of(OpKind kind, DType dtype, ReduceOp op = ReduceOp::sum, int root = 0) {
  return {kind, op, dtype, DeviceKind::cpu, root, 1, 1, {}};
}

/// Elements between guard bytes that nobody may change, at an address aligned to the element and to no more. On a GPU,
/// what data() gives is a mirror on the host: upload() puts it there, download() fetches it.
class GuardedArray {
 public:
  GuardedArray(std::size_t bytes, std::size_t shift, MemorySource* memory, Device device = {})
      : begin_(guard + shift), bytes_(bytes) {
    const std::size_t all = begin_ + bytes + guard;
    if (memory) source_ = memory->allocate(all, device);
    if (device.kind == DeviceKind::cuda) {
      gpu_ = &cuda_gpu(device.index);
      pinned_ = GpuBuffer(*gpu_, all, GpuBuffer::Kind::pinned);
      if (!source_) on_gpu_ = GpuBuffer(*gpu_, all);
      place_ = source_ ? source_.get() : on_gpu_.data();
      storage_span_ = {pinned_.data(), all};
    } else {
      if (!source_) storage_.resize(all);
      storage_span_ = {source_ ? source_.get() : storage_.data(), all};
      place_ = storage_span_.data();
    }
    std::ranges::fill(storage_span_, mark);
  }
  void* data() { return storage_span_.data() + begin_; }
  const void* data() const { return storage_span_.data() + begin_; }
  /// Where data() lies for the backend.
  std::byte* place() const { return place_ + begin_; }
  void upload(void* stream) const {
    if (gpu_) gpu_->copy(place_, storage_span_.data(), storage_span_.size(), stream);
  }
  void download(void* stream) const {
    if (gpu_) gpu_->copy(storage_span_.data(), place_, storage_span_.size(), stream);
  }
  bool intact() const {
    const auto is_mark = [](std::byte value) { return value == mark; };
    return std::ranges::all_of(storage_span_.first(begin_), is_mark) &&
           std::ranges::all_of(storage_span_.subspan(begin_ + bytes_), is_mark);
  }

  static constexpr std::byte mark{0xa5};  ///< what all memory holds before anybody writes

 private:
  static constexpr std::size_t guard = 64;
  std::size_t begin_;
  std::size_t bytes_;
  Gpu* gpu_ = nullptr;
  std::vector<std::byte> storage_;
  std::shared_ptr<std::byte> source_;
  GpuBuffer pinned_, on_gpu_;
  std::byte* place_ = nullptr;
  std::span<std::byte> storage_span_;  // of one of them
};

/// Waits until everything on a stream has run.
inline void wait_for(Gpu& gpu, void* stream) {
  for (const auto point = gpu.mark(stream); !point->passed();) std::this_thread::yield();
}

/// One rank's memory for a call, and the operation on it.
///
/// In place, the smaller of input and output is this rank's share of the larger. Where a rank's output is ignored it
/// gets none, or (for every second seed) one that must stay as it is.
class Job {
 public:
  Job(const Call& call, int rank, int ranks, MemorySource* memory = nullptr, Device device = {})
      : call_(call), rank_(rank), ranks_(ranks), device_(device) {
    if (on_gpu()) stream_ = std::make_unique<GpuStream>(cuda_gpu(device.index));
    if (kind() == OpKind::all_to_all && !call_.equal_blocks()) call_.in_place = false;
    const std::size_t size = size_of(call_.signature.dtype);
    for (std::size_t t = 0; t < call_.sizes.size(); ++t) {
      const std::size_t shift = (call_.seed + t + static_cast<std::size_t>(rank)) % 7 * size;
      const bool one = call_.in_place && writes();  // one piece of memory, as long as the larger
      const std::int64_t in = in_shape(t).elements(), out = out_shape(t).elements();
      inputs_.emplace_back(static_cast<std::size_t>(one       ? std::max(in, out)
                                                    : reads() ? in
                                                              : 0) *
                               size,
                           shift, memory, device);
      outputs_.emplace_back(static_cast<std::size_t>(one ? 0 : out) * size, 3 * size, memory, device);
      with_type(call_.signature.dtype, [&]<class T>() { fill<T>(t); });
    }
  }

  void start(Backend& backend) {
    bucket_ = std::make_unique<Bucket>(bucket());
    if (on_gpu()) {
      for (const auto* arrays : {&inputs_, &outputs_}) {
        for (const GuardedArray& array : *arrays) array.upload(stream_->get());
      }
      bucket_->ready.push_back(cuda_gpu(device_.index).mark(stream_->get()));
    }
    operation_ = backend.start(*bucket_);
  }
  /// On a GPU, results are fetched by the stream, after the operation's point in it, for every second seed as soon as
  /// that is known.
  bool step() {
    const bool complete = operation_->step();
    if (!on_gpu() || fetched_) return complete;
    const auto result = operation_->result();
    if (!complete && (!result || call_.seed % 2 == 0)) return false;
    if (!complete) result->order(stream_->get());
    for (const auto* arrays : {&inputs_, &outputs_}) {
      for (const GuardedArray& array : *arrays) array.download(stream_->get());
    }
    fetched_ = true;
    return complete;
  }
  bool holds_backend() const { return operation_->holds_backend(); }
  bool moved() const { return operation_->moved(); }
  void abandon() { operation_.reset(); }
  void finish() {
    while (!step()) std::this_thread::yield();
    operation_.reset();
  }

  /// Expects the result in the outputs, the inputs as they were (but where the output lies in them), and the memory
  /// around both untouched.
  void verify() {
    if (on_gpu()) wait_for(cuda_gpu(device_.index), stream_->get());
    if (std::ranges::binary_search(call_.absent, rank_)) return;  // its memory is scratch
    for (std::size_t t = 0; t < call_.sizes.size(); ++t) {
      with_type(call_.signature.dtype, [&]<class T>() { verify_tensor<T>(t); });
      EXPECT_TRUE(inputs_[t].intact() && outputs_[t].intact()) << text() << " wrote beside tensor " << t;
    }
  }

  std::string text() const {
    return fmt::format("{} of {} tensors with rows of {}, {} place, seed {}, rank {} of {}", to_string(call_.signature),
                       call_.sizes.size(), call_.width, call_.in_place ? "in" : "out of", call_.seed, rank_, ranks_);
  }

 private:
  bool on_gpu() const { return device_.kind == DeviceKind::cuda; }
  OpKind kind() const { return call_.signature.kind; }
  bool is_root() const { return call_.signature.root == rank_; }
  bool reads() const { return kind() != OpKind::scatter || is_root(); }
  bool writes() const { return (kind() != OpKind::reduce && kind() != OpKind::gather) || is_root(); }

  Shape shape_of(std::int64_t rows) const { return call_.width == 1 ? Shape{rows} : Shape{rows, call_.width}; }
  std::int64_t rows_before(std::size_t t, int peer) const {  // in the output, of blocks from other ranks
    std::int64_t sum = 0;
    for (int from = 0; from < peer; ++from) sum += call_.rows(t, from, rank_);
    return sum;
  }
  Shape in_shape(std::size_t t) const {
    if (!has_rows(kind())) return shape_of(call_.sizes[t]);
    if (kind() != OpKind::all_to_all) return shape_of(call_.rows(t, rank_, 0));
    return shape_of(sent_before(t, rank_, ranks_));
  }
  std::int64_t sent_before(std::size_t t, int from, int to) const {
    std::int64_t sum = 0;
    for (int peer = 0; peer < to; ++peer) sum += call_.rows(t, from, peer);
    return sum;
  }
  std::shared_ptr<const BlockRows> block_rows(std::size_t t) const {
    if (call_.equal_blocks()) return nullptr;
    BlockRows rows;
    for (int from = 0; from < ranks_; ++from) {
      for (int to = 0; to < (kind() == OpKind::all_to_all ? ranks_ : 1); ++to) rows.push_back(call_.rows(t, from, to));
    }
    return std::make_shared<const BlockRows>(std::move(rows));
  }
  RowRange rows(std::size_t t) const { return rows_of_rank(call_.sizes[t], ranks_, rank_); }
  Shape out_shape(std::size_t t) const {
    if (!writes() && call_.seed % 2 == 0) return Shape{0};
    switch (kind()) {
      case OpKind::all_gather:
      case OpKind::gather:
      case OpKind::all_to_all: return shape_of(rows_before(t, ranks_));
      case OpKind::reduce_scatter:
      case OpKind::scatter: return shape_of(rows(t).count());
      default: return in_shape(t);
    }
  }

  // Where the input and the output begin in the memory that they share; in elements.
  std::int64_t input_begin(std::size_t t) const {
    const bool within = kind() == OpKind::all_gather || kind() == OpKind::gather;
    return call_.in_place && writes() && within ? rows_before(t, rank_) * call_.width : 0;
  }
  std::int64_t output_begin(std::size_t t) const {
    const bool within = kind() == OpKind::reduce_scatter || kind() == OpKind::scatter;
    return call_.in_place && within && reads() ? rows(t).begin * call_.width : 0;
  }
  std::byte* input(std::size_t t) {
    return static_cast<std::byte*>(inputs_[t].data()) +
           static_cast<std::size_t>(input_begin(t)) * size_of(call_.signature.dtype);
  }
  std::byte* output(std::size_t t) {
    GuardedArray& memory = call_.in_place && writes() ? inputs_[t] : outputs_[t];
    return static_cast<std::byte*>(memory.data()) +
           static_cast<std::size_t>(output_begin(t)) * size_of(call_.signature.dtype);
  }

  /// Where an element of the mirror lies for the backend.
  static std::byte* placed(GuardedArray& array, std::byte* element) {
    return array.place() + (element - static_cast<std::byte*>(array.data()));
  }

  int divide_by() const { return divisor_of(call_.signature, ranks_, call_.absent.size()); }

  Bucket bucket() {
    Bucket bucket{call_.signature, {}, call_.absent, divide_by()};
    for (std::size_t t = 0; t < call_.sizes.size(); ++t) {
      const DType dtype = call_.signature.dtype;
      const bool ignored = !writes() && call_.seed % 2 == 0;
      GuardedArray& out = call_.in_place && writes() ? inputs_[t] : outputs_[t];
      bucket.tensors.push_back({{reads() ? placed(inputs_[t], input(t)) : nullptr, in_shape(t), dtype, device_},
                                {ignored ? nullptr : placed(out, output(t)), out_shape(t), dtype, device_},
                                has_rows(kind()) ? block_rows(t) : nullptr});
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
    if (!reads()) return;
    T* elements = reinterpret_cast<T*>(input(t));
    for (std::int64_t i = 0; i < in_shape(t).elements(); ++i) elements[i] = value<T>(rank_, t, i);
  }

  template <class T>
  T reduced(std::size_t t, std::int64_t i) const {
    std::array<T, 64> values{};
    std::size_t present = 0;
    for (int rank = 0; rank < ranks_; ++rank) {
      if (!std::ranges::binary_search(call_.absent, rank)) values[present++] = value<T>(rank, t, i);
    }
    const Reduction reduction = reduction_of(call_.signature, divide_by());
    const bool by_place = !call_.nodes.empty() || !call_.domains.empty();
    if (by_place && is_floating_point(call_.signature.dtype)) return reduced_by_place<T>(t, i, reduction);
    return reference_reduce<T>(reduction, std::span<const T>(values).first(present));
  }

  /// Within the nodes first, then along a tree of those of which somebody takes part, or within the domains, then in
  /// their order; in the accumulator's type. Exact types need no such order.
  template <class T>
  T reduced_by_place(std::size_t t, std::int64_t i, const Reduction& reduction) const {
    using Sum = std::conditional_t<is_half<T>, float, T>;
    const auto widened = [](T value) {
      if constexpr (is_half<T>)
        return to_float(value);
      else
        return value;
    };
    std::array<Sum, 64> sums{};
    std::size_t nodes = 0;
    for (const auto& node : call_.nodes.empty() ? call_.domains : call_.nodes) {
      std::array<Sum, 64> values{};
      std::size_t present = 0;
      for (int rank : node) {
        if (!std::ranges::binary_search(call_.absent, rank)) values[present++] = widened(value<T>(rank, t, i));
      }
      const Reduction within{reduction.dtype, reduction.op == ReduceOp::average ? ReduceOp::sum : reduction.op,
                             reduction.prescale};
      if (present > 0) sums[nodes++] = reference_reduce<Sum>(within, std::span<const Sum>(values).first(present));
    }
    const Reduction add{reduction.dtype, reduction.op == ReduceOp::average ? ReduceOp::sum : reduction.op};
    const auto added = [&](std::size_t to, std::size_t from) {
      const std::array<Sum, 2> both{sums[to], sums[from]};
      sums[to] = reference_reduce<Sum>(add, std::span<const Sum>(both));
    };
    const std::size_t base = call_.nodes.empty() ? 1 : std::bit_floor(nodes);
    for (std::size_t i = base; i < nodes; ++i) added(call_.nodes.empty() ? 0 : i - base, i);
    for (std::size_t distance = 1; distance < base; distance *= 2) {
      for (std::size_t i = 0; i < base; i += 2 * distance) added(i, i + distance);
    }
    Reduction last = reduction;
    last.prescale = 1;
    const Sum sum = reference_reduce<Sum>(last, std::span<const Sum>(sums).first(1));
    if constexpr (std::is_same_v<T, Float16>)
      return to_float16(sum);
    else if constexpr (std::is_same_v<T, BFloat16>)
      return to_bfloat16(sum);
    else
      return sum;
  }

  /// Element i of the output, on ranks that have one.
  template <class T>
  T expected(std::size_t t, std::int64_t i) const {
    const std::int64_t first = rows(t).begin * call_.width;  // of reduce_scatter and scatter
    int from = 0;                                            // of what has_rows()
    while (has_rows(kind()) && i >= rows_before(t, from + 1) * call_.width) ++from;
    const std::int64_t in_block = i - rows_before(t, from) * call_.width;
    switch (kind()) {
      case OpKind::broadcast: return value<T>(call_.signature.root, t, i);
      case OpKind::all_gather:
      case OpKind::gather: return value<T>(from, t, in_block);
      case OpKind::scatter: return value<T>(call_.signature.root, t, first + i);
      case OpKind::all_to_all: return value<T>(from, t, sent_before(t, from, rank_) * call_.width + in_block);
      case OpKind::reduce_scatter: return reduced<T>(t, first + i);
      default: return reduced<T>(t, i);
    }
  }

  template <class T>
  bool close(std::size_t t, std::int64_t i, const T& wanted, const std::byte* found) const {
    if (call_.exact || !reduces(kind()) || !is_floating_point(DTypeOf<T>::value)) return false;
    const auto number = [](T value) -> double {
      if constexpr (is_half<T>)
        return static_cast<double>(to_float(value));
      else
        return static_cast<double>(value);
    };
    const Reduction how = reduction_of(call_.signature, divide_by());
    const std::int64_t element = i + (kind() == OpKind::reduce_scatter ? rows(t).begin * call_.width : 0);
    double magnitude = std::abs(number(wanted));
    for (int rank = 0; rank < ranks_ && how.op != ReduceOp::product; ++rank) {
      magnitude += std::abs(number(value<T>(rank, t, element)) * how.prescale * how.postscale /
                            (how.op == ReduceOp::average ? how.divide_by : 1));
    }
    T value{};
    std::memcpy(&value, found, sizeof(T));
    return std::abs(number(value) - number(wanted)) <= rounding_of<T>(how, static_cast<std::size_t>(ranks_), magnitude);
  }

  template <class T>
  void verify_tensor(std::size_t t) {
    const auto same = [](const T& wanted, const std::byte* found) {
      return std::memcmp(&wanted, found, sizeof(T)) == 0;
    };
    const std::int64_t outs = out_shape(t).elements();
    for (std::int64_t i = 0; i < outs && writes(); ++i) {
      const T wanted = expected<T>(t, i);
      const std::byte* const found = output(t) + static_cast<std::size_t>(i) * sizeof(T);
      if (same(wanted, found) || close(t, i, wanted, found)) continue;
      ADD_FAILURE() << text() << ": wrong element " << i << " of tensor " << t << " with " << outs;
      return;
    }
    for (std::size_t byte = 0; !writes() && byte < static_cast<std::size_t>(outs) * sizeof(T); ++byte) {
      if (output(t)[byte] == GuardedArray::mark) continue;
      ADD_FAILURE() << text() << ": an output that is ignored changed";
      return;
    }
    const bool one = call_.in_place && writes();
    for (std::int64_t i = 0; i < in_shape(t).elements() && reads(); ++i) {
      const std::int64_t place = input_begin(t) + i - output_begin(t);
      if (one && place >= 0 && place < outs) continue;
      if (same(value<T>(rank_, t, i), input(t) + static_cast<std::size_t>(i) * sizeof(T))) continue;
      ADD_FAILURE() << text() << ": input " << i << " of tensor " << t << " changed";
      return;
    }
  }

  Call call_;
  int rank_;
  int ranks_;
  Device device_;
  bool fetched_ = false;
  std::unique_ptr<GpuStream> stream_;  // the program's, on a GPU
  std::vector<GuardedArray> inputs_;
  std::vector<GuardedArray> outputs_;
  std::unique_ptr<Bucket> bucket_;
  std::unique_ptr<Operation> operation_;  // last: dies before the memory that it uses
};

/// How an operation that cannot complete ends.
inline ErrorCode code_of_step(Job& job) {
  try {
    while (!job.step()) std::this_thread::yield();
  } catch (const Error& error) {
    return error.code();
  }
  return ErrorCode::closed;  // no error
}

/// Steps an operation until it is complete; sleeps at the doorbell in between.
inline void sleep_until_complete(Job& job, Doorbell& doorbell) {
  while (!job.step()) {
    const std::uint32_t ticket = doorbell.arm();
    if (job.step()) break;
    if (job.moved()) continue;  // it has done enough for a step, or a peer goes on
    const auto before = std::chrono::steady_clock::now();
    doorbell.sleep(ticket, std::chrono::seconds(20));
    ASSERT_LT(std::chrono::steady_clock::now() - before, std::chrono::seconds(10)) << "a ring was lost";
  }
  doorbell.disarm();
}

/// A size that is to be large. A tenth of it is enough under sanitizers, whose time goes into filling and comparing
/// elements: that is still more than a chunk where the size is more.
constexpr std::int64_t large(std::int64_t elements) {
  return sanitized ? elements / 10 : elements;
}

class BackendConformance : public ::testing::TestWithParam<HarnessFactory> {
 protected:
  void SetUp() override {
    harness_ = GetParam().make();
    if (!harness_) GTEST_SKIP() << "this machine has no device for it";
  }

  int ranks() const { return harness_->ranks(); }
  std::int64_t large(std::int64_t elements) const { return kolo::large(elements) / GetParam().shrinks; }

  void run(const std::function<void(int rank, Backend& backend)>& body) { harness_->run(body); }
  MemorySource* memory_of(Backend& backend) const { return harness_->memory_of(backend); }

  /// A call as the harness has it, on one rank.
  std::unique_ptr<Job> job(Call call, int rank, Backend& backend, bool in_memory = true) const {
    if (reduces(call.signature.kind)) {
      call.nodes = harness_->nodes();
      call.domains = harness_->domains();
    }
    call.signature.device = harness_->device(rank).kind;
    call.exact = harness_->exact();
    return std::make_unique<Job>(call, rank, ranks(), in_memory ? memory_of(backend) : nullptr, harness_->device(rank));
  }

  /// all_reduce of floats in place, in a bucket of `tensors`.
  void all_reduce(Backend& backend, int rank, ReduceOp op, const std::vector<std::span<float>>& tensors) const {
    const Device device = harness_->device(rank);
    Signature signature = all_reduce_of(DType::f32, op);
    signature.device = device.kind;
    Bucket bucket{signature, {}, {}, divisor_of(signature, ranks())};
    std::vector<GuardedArray> arrays;
    std::unique_ptr<GpuStream> stream;
    if (device.kind == DeviceKind::cuda) stream = std::make_unique<GpuStream>(cuda_gpu(device.index));
    for (const auto& values : tensors) {
      Tensor tensor = view(values);
      tensor.device = device;
      if (stream) {
        GuardedArray& array = arrays.emplace_back(values.size_bytes(), 0, nullptr, device);
        std::memcpy(array.data(), values.data(), values.size_bytes());
        array.upload(stream->get());
        tensor.data = array.place();
      }
      bucket.tensors.push_back({tensor, tensor});
    }
    if (stream) bucket.ready.push_back(cuda_gpu(device.index).mark(stream->get()));
    const auto operation = backend.start(bucket);
    while (!operation->step()) std::this_thread::yield();
    for (const GuardedArray& array : arrays) array.download(stream->get());
    if (stream) wait_for(cuda_gpu(device.index), stream->get());
    for (std::size_t t = 0; t < arrays.size(); ++t)
      std::memcpy(tensors[t].data(), arrays[t].data(), tensors[t].size_bytes());
  }
  /// Runs the calls one after the other on all ranks and verifies each.
  void run_calls(const std::vector<Call>& calls) {
    run([&](int rank, Backend& backend) {
      for (std::size_t i = 0; i < calls.size(); i += GetParam().one_of) run_call(calls[i], rank, backend);
    });
  }
  void run_call(const Call& call, int rank, Backend& backend) const {
    Signature signature = call.signature;
    signature.device = harness_->device(rank).kind;
    EXPECT_TRUE(backend.supports(signature)) << to_string(signature);
    const auto mine = job(call, rank, backend);
    mine->start(backend);
    mine->finish();
    mine->verify();
  }

  /// Runs all calls at once: every rank starts them in order, but steps those in flight in an order of its own and
  /// pauses at random, so that ranks are at different places all the time.
  void run_schedule(const std::vector<Call>& calls, std::uint64_t seed) {
    run([&](int rank, Backend& backend) {
      std::mt19937_64 random(seed * 1000 + static_cast<std::uint64_t>(rank));
      std::vector<std::unique_ptr<Job>> running;
      std::vector<std::unique_ptr<Job>>
          ended;  // whoever frees memory of a GPU waits for all that is on it, and steps nothing
      std::size_t started = 0;
      while (started < calls.size() || !running.empty()) {
        const bool held = std::ranges::any_of(running, [](const auto& job) { return job->holds_backend(); });
        if (started < calls.size() && !held && random() % 2 == 0) {
          running.push_back(job(calls[started++], rank, backend, false));
          running.back()->start(backend);
        }
        if (!running.empty()) {
          const std::size_t chosen = random() % running.size();
          if (running[chosen]->step()) {
            running[chosen]->verify();
            ended.push_back(std::move(running[chosen]));
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

/// Of backends where the order of additions does not depend on where an element lies.
class ExactConformance : public BackendConformance {};

/// Calls at random, the same on every rank.
std::vector<Call> random_calls(std::uint64_t seed, int ranks, std::uint64_t most = 200);

}  // namespace kolo
