// NCCL with one rank: by kolo's table of its functions, then by kolo's backend.

#include <fmt/format.h>

#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ops/local/backend.h"
#include "ops/nccl/backend.h"
#include "ops/staged/backend.h"
#include "tests/gpu/calls.h"
#include "tests/gpu/smoke.h"
#include "tests/ops/kernels/element_types.h"

namespace kolo::smoke {
namespace {

const NcclTable& table() {
  std::string why;
  const NcclTable* const found = nccl_table(&why);
  if (found == nullptr) throw Skipped(why);
  return *found;
}

/// A communicator of one rank, which does not block; aborted at the end, unless that was done before.
class Comm {
 public:
  explicit Comm(Gpu& gpu) : gpu_(gpu), stream_(gpu, StreamPriority::high) {
    const GpuGuard selected(gpu);
    NcclId id{};
    check_nccl(table(), table().get_unique_id(&id), nullptr, "ncclGetUniqueId");
    check_nccl(table(), table().init(&comm_, 1, id, 0, 32, false), comm_, "ncclCommInitRankConfig");
    settle();
  }
  ~Comm() {
    if (comm_ != nullptr) (void)end(table().abort);
  }
  Comm(const Comm&) = delete;
  Comm& operator=(const Comm&) = delete;

  NcclResult end(NcclResult (*how)(NcclComm comm)) {
    const GpuGuard selected(gpu_);
    return how(std::exchange(comm_, nullptr));
  }
  /// Puts a sum on the stream, as floats.
  void add(const GpuBuffer& in, const GpuBuffer& out, NcclOp op) {
    const GpuGuard selected(gpu_);
    check_nccl(table(),
               table().all_reduce(in.data(), out.data(), in.size() / sizeof(float), NcclType::f32, op, comm_, stream()),
               comm_, "ncclAllReduce");
    settle();
  }
  void settle() {
    const GpuGuard selected(gpu_);
    NcclResult state = NcclResult::in_progress;
    while (state == NcclResult::in_progress) {
      check_nccl(table(), table().async_error(comm_, &state), comm_, "ncclCommGetAsyncError");
      std::this_thread::yield();
    }
    check_nccl(table(), state, comm_, "NCCL, asynchronously,");
  }
  NcclComm get() const { return comm_; }
  void* stream() const { return stream_.get(); }

 private:
  Gpu& gpu_;
  GpuStream stream_;
  NcclComm comm_ = nullptr;
};

std::vector<float> numbers(std::size_t count) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<float>(static_cast<int>(i * 37 % 2001) - 1000);
  return values;
}
GpuBuffer floats_on(Gpu& gpu, const std::vector<float>& values) {
  return on_gpu(gpu, std::as_bytes(std::span(values)));
}
std::vector<float> floats_of(Gpu& gpu, const GpuBuffer& buffer) {
  std::vector<float> values(buffer.size() / sizeof(float));
  gpu.copy(values.data(), buffer.data(), buffer.size());
  return values;
}

void check_calls(Line& line, Gpu& gpu) {
  Comm comm(gpu);
  const std::vector<float> values = numbers(1 << 18);
  const GpuBuffer in = floats_on(gpu, values), out(gpu, in.size());
  const auto go = [&] {
    comm.add(in, out, NcclOp::sum);
    wait(gpu, comm.stream());
  };
  line.time(go);
  require(floats_of(gpu, out) == values, "the sum of one rank's values is not what it has given");
  check_nccl(table(), comm.end(table().abort), nullptr, "ncclCommAbort");
  Comm other(gpu);
  other.add(in, out, NcclOp::sum);
  wait(gpu, other.stream());
  const GpuGuard selected(gpu);
  check_nccl(table(), table().finalize(other.get()), other.get(), "ncclCommFinalize");
  other.settle();
  check_nccl(table(), other.end(table().destroy), nullptr, "ncclCommDestroy");
}

/// What method.cc takes to be so: a group of one rank does not scale by NCCL.
void check_factor(Line& line, Gpu& gpu) {
  Comm comm(gpu);
  const GpuGuard selected(gpu);
  const std::vector<float> values(std::size_t{1 << 18} + 3, 3.0F), before(values.size(), 7.0F);
  const GpuBuffer in = floats_on(gpu, values), out = floats_on(gpu, before);
  const float factor = 0.5F;
  NcclOp op{};
  check_nccl(table(), table().create_pre_mul_sum(&op, &factor, NcclType::f32, comm.get()), comm.get(),
             "ncclRedOpCreatePreMulSum");
  line.time([&] {
    comm.add(in, out, op);
    wait(gpu, comm.stream());
  });
  check_nccl(table(), table().destroy_op(op, comm.get()), comm.get(), "ncclRedOpDestroy");
  std::size_t scaled = 0, copied = 0, untouched = 0;
  for (const float value : floats_of(gpu, out)) {
    scaled += value == 1.5F ? 1 : 0;
    copied += value == 3.0F ? 1 : 0;
    untouched += value == 7.0F ? 1 : 0;
  }
  line.note(fmt::format("of {} numbers {} are scaled, {} are not, {} are not written", values.size(), scaled, copied,
                        untouched));
  require(scaled + copied + untouched == values.size(), "some numbers are none of these");
}

struct Given {
  DType dtype;
  ReduceOp op;
  double prescale = 1, postscale = 1;
};

/// An all-reduce of three tensors, in place: a large one and two small ones.
void check_bucket(Gpu& gpu, Backend& backend, const Given& given, std::int64_t count) {
  with_type(given.dtype, [&]<class T>() {
    if constexpr (!std::is_same_v<T, bool>) {
      const auto elements = static_cast<std::size_t>(count);
      std::vector<T> values(elements), wanted(elements);
      for (std::size_t i = 0; i < elements; ++i) {
        const double number = static_cast<double>(i % 25) * 4;
        values[i] = from_double<T>(number);
        wanted[i] = from_double<T>(number * given.prescale * given.postscale);
      }
      const GpuBuffer memory = on_gpu(gpu, std::as_bytes(std::span(values)));
      const auto part = [&](std::int64_t first, std::int64_t length) {
        return Tensor{memory.data() + first * static_cast<std::int64_t>(sizeof(T)),
                      Shape{length},
                      given.dtype,
                      {DeviceKind::cuda, gpu.index()}};
      };
      Bucket bucket;
      bucket.signature.dtype = given.dtype;
      bucket.signature.op = given.op;
      bucket.signature.device = DeviceKind::cuda;
      bucket.signature.prescale = given.prescale;
      bucket.signature.postscale = given.postscale;
      const std::int64_t large = count - 500;
      for (const Tensor& tensor : {part(0, large), part(large, 400), part(large + 401, 99)}) {
        bucket.tensors.push_back({tensor, tensor});
      }
      bucket.signature.shape = bucket.tensors[0].in.shape;
      require(backend.supports(bucket.signature), "it is not supported");
      wanted[static_cast<std::size_t>(large) + 400] = values[static_cast<std::size_t>(large) + 400];
      const auto reserved = backend.reserve(bucket.signature);
      const auto operation = backend.start(bucket);
      while (!operation->step()) std::this_thread::yield();
      std::vector<T> found(elements);
      gpu.copy(found.data(), memory.data(), memory.size());
      for (std::size_t i = 0; i < elements; ++i) {
        if (std::memcmp(&found[i], &wanted[i], sizeof(T)) == 0) continue;
        throw Wrong(fmt::format("{} of {}, scales {} and {}: element {} of {} is wrong", to_string(given.op),
                                to_string(given.dtype), given.prescale, given.postscale, i, elements));
      }
    }
  });
}

void check_backend(Line& line, Gpu& gpu, Backend& backend) {
  const std::vector<Given> all{{DType::f32, ReduceOp::sum},           {DType::f32, ReduceOp::average, 0.5},
                               {DType::bf16, ReduceOp::sum, 0.25, 2}, {DType::f16, ReduceOp::average, 1, 0.5},
                               {DType::f32, ReduceOp::max},           {DType::i32, ReduceOp::sum, 0.5},
                               {DType::u8, ReduceOp::bit_xor},        {DType::f64, ReduceOp::product}};
  for (const Given& given : all) {
    check_bucket(gpu, backend, given, 2000);
    check_bucket(gpu, backend, given, 1 << 20);
  }
  line.time([&] { check_bucket(gpu, backend, {DType::f32, ReduceOp::sum}, 1 << 18); });
}

GroupInfo world() {
  GroupInfo info;
  info.name = "world";
  info.ranks = {0};
  return info;
}

void check_kolo(Line& line, Gpu& gpu, const NcclTuning& tuning) {
  const auto rank = std::make_shared<NcclRank>(table(), gpu, tuning);
  const auto backend = nccl_backend(rank, world(), std::move(local_backends(1, {})[0]));
  check_backend(line, gpu, *backend);
  const auto memory = backend->memory()->allocate(1 << 20, {DeviceKind::cuda, gpu.index()});
  require(memory != nullptr, "ncclMemAlloc gives no memory");
  // A group of its own, whose communicator is aborted and made anew.
  const auto group = backend->for_group({.id = 5, .name = "group", .ranks = {0}});
  require(group != nullptr, "there is no group");
  const std::vector<Introduction> introductions{group->introduction()};
  require(group->introduce(introductions), "the group's backend does not serve it");
  check_bucket(gpu, *group, {DType::f32, ReduceOp::sum}, 1 << 20);
  auto& device = dynamic_cast<DeviceBackend&>(*group);
  device.recover();
  while (!device.recovered()) std::this_thread::yield();
  check_bucket(gpu, *group, {DType::bf16, ReduceOp::sum}, 1 << 20);
}

void check_staged(Line& line, Gpu& gpu) {
  const auto backend = staged_backend(gpu, local_backends(1, {}), world(), {});
  check_backend(line, gpu, *backend);
}

}  // namespace

void check_nccl(Checks& checks, Gpu& gpu) {
  constexpr int loading = 3;  // limits that what loads NCCL, and looks for networks, may take
  checks.run("staged backend of one rank: all_reduce", [&](Line& line) { check_staged(line, gpu); });
  checks.run(
      "NCCL: init, all_reduce of 1 MiB, abort, finalize", [&](Line& line) { check_calls(line, gpu); }, loading);
  checks.run(
      "NCCL: a factor with one rank", [&](Line& line) { check_factor(line, gpu); }, loading);
  checks.run(
      "nccl backend of one rank: all_reduce, group, recover", [&](Line& line) { check_kolo(line, gpu, {}); }, loading);
  checks.run(
      "nccl backend whose communicators block", [&](Line& line) { check_kolo(line, gpu, {.blocking = true}); },
      loading);
  checks.run(
      "nccl backend with registered memory and f32 for halves",
      [&](Line& line) { check_kolo(line, gpu, {.wide_halves = true, .register_memory = true, .timed = true}); },
      loading);
}

}  // namespace kolo::smoke
