#include "bench/kolo_bench/peers/raw_nccl.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <exception>

#include "bench/kolo_bench/measure/collective.h"
#include "ops/host/process.h"
#include "ops/nccl/method.h"
#include "ops/nccl/rank.h"

namespace kolo::bench {
namespace {

bool has_type(DType dtype) {
  return dtype != DType::boolean && dtype != DType::i16 && dtype != DType::u16;
}

std::optional<NcclOp> op_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum: return NcclOp::sum;
    case ReduceOp::product: return NcclOp::product;
    case ReduceOp::min: return NcclOp::min;
    case ReduceOp::max: return NcclOp::max;
    case ReduceOp::average: return NcclOp::average;
    default: return std::nullopt;
  }
}

class Calls final : public Asynchronous {
 public:
  Calls(RawNccl& nccl, const Work& work, std::string name, bool one_group)
      : nccl_(nccl), work_(work), name_(std::move(name)), one_group_(one_group) {}
  std::string_view name() const override { return name_; }
  void start() override { nccl_.launch(work_, one_group_); }
  void finish() override { nccl_.wait(); }

 private:
  RawNccl& nccl_;
  Work work_;
  std::string name_;
  bool one_group_;
};

}  // namespace

std::optional<std::string> no_nccl_call(const Work& work) {
  const Signature& how = work.signature;
  if (how.kind == OpKind::all_to_all && work.in_place) return "NCCL has no all_to_all in place";
  if (!reduces(how.kind)) return std::nullopt;
  if (!has_type(how.dtype)) return fmt::format("NCCL reduces no {}", to_string(how.dtype));
  if (!op_of(how.op)) return fmt::format("NCCL has no {}", to_string(how.op));
  if (how.op == ReduceOp::average && !is_floating_point(how.dtype))
    return "NCCL rounds averages of integers its own way";
  return std::nullopt;
}

NcclInitRank nccl_init_rank() {
  void* const library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_NOLOAD);
  return library ? reinterpret_cast<NcclInitRank>(dlsym(library, "ncclCommInitRank")) : nullptr;
}

RawNccl::RawNccl(const NcclTable& table, Gpu& gpu, const NcclId& id, int rank, int ranks, NcclInitRank init)
    : table_(table),
      gpu_(gpu),
      selected_(gpu),
      stream_(gpu, StreamPriority::highest),
      rank_(rank),
      ranks_(ranks),
      exceptions_(std::uncaught_exceptions()) {
  const NcclResult rc = init ? init(&comm_, ranks, id, rank) : table_.init(&comm_, ranks, id, rank, 0, false);
  check_nccl(table_, rc, nullptr, "ncclCommInitRank");
  settle("ncclCommInitRank");
}

RawNccl::~RawNccl() {
  if (std::uncaught_exceptions() > exceptions_) {
    (void)table_.abort(comm_);
    return;
  }
  try {
    check_nccl(table_, table_.finalize(comm_), comm_, "ncclCommFinalize");
    settle("ncclCommFinalize");
    (void)table_.destroy(comm_);
  } catch (const Error&) {
    (void)table_.abort(comm_);
  }
}

std::unique_ptr<Asynchronous> RawNccl::candidate(const Work& work, std::string name, bool one_group) {
  return std::make_unique<Calls>(*this, work, std::move(name), one_group);
}

void RawNccl::settle(const char* call) {
  for (NcclResult state = NcclResult::in_progress; state == NcclResult::in_progress;) {
    check_nccl(table_, table_.async_error(comm_, &state), comm_, "ncclCommGetAsyncError");
    check_nccl(table_, state, comm_, call);
    if (state == NcclResult::in_progress) (void)sched_yield();
  }
}

void RawNccl::launch(const Work& work, bool one_group) {
  const std::span lanes(work.lanes);
  if (one_group) return launch_group(work, lanes);
  for (std::size_t i = 0; i < lanes.size(); ++i) launch_group(work, lanes.subspan(i, 1));
}

void RawNccl::launch_group(const Work& work, std::span<const BucketTensor> lanes) {
  check_nccl(table_, table_.group_start(), comm_, "ncclGroupStart");
  for (const BucketTensor& lane : lanes) put(work, lane);
  const NcclResult rc = table_.group_end();
  check_nccl(table_, rc, comm_, "ncclGroupEnd");
  if (rc == NcclResult::in_progress) settle("ncclGroupEnd");
}

void RawNccl::wait() {
  const auto end = gpu_.mark(stream_.get());
  constexpr int between_looks = 1 << 14;  // at what NCCL has to say of errors
  for (int spins = 1; !end->passed(); ++spins) {
    if (spins % between_looks == 0) settle("a collective");
    pause_briefly();
  }
}

void RawNccl::put(const Work& work, const BucketTensor& lane) {
  const Signature& how = work.signature;
  const auto elements = static_cast<std::size_t>(std::max(lane.in.elements(), lane.out.elements()));
  const bool as_bytes = !reduces(how.kind);
  const NcclType type = as_bytes ? NcclType::u8 : nccl_type(how.dtype);
  const NcclOp op = reduces(how.kind) ? *op_of(how.op) : NcclOp::sum;
  const std::size_t all = as_bytes ? elements * size_of(how.dtype) : elements;
  const std::size_t block = all / static_cast<std::size_t>(ranks_);
  const bool is_root = how.root == rank_;
  const auto check = [&](NcclResult rc, const char* call) { check_nccl(table_, rc, comm_, call); };
  const auto send = [&](std::size_t offset, std::size_t count, int peer) {
    check(table_.send(static_cast<const std::byte*>(lane.in.data) + offset, count, type, peer, comm_, stream_.get()),
          "ncclSend");
  };
  const auto receive = [&](std::size_t offset, std::size_t count, int peer) {
    check(table_.receive(static_cast<std::byte*>(lane.out.data) + offset, count, type, peer, comm_, stream_.get()),
          "ncclRecv");
  };
  const void* const in = lane.in.data;
  void* const out = lane.out.data;
  void* const stream = stream_.get();
  switch (how.kind) {
    case OpKind::all_reduce: return check(table_.all_reduce(in, out, all, type, op, comm_, stream), "ncclAllReduce");
    case OpKind::reduce: return check(table_.reduce(in, out, all, type, op, how.root, comm_, stream), "ncclReduce");
    case OpKind::broadcast:
      return check(table_.broadcast(in, out, all, type, how.root, comm_, stream), "ncclBroadcast");
    case OpKind::all_gather: return check(table_.all_gather(in, out, block, type, comm_, stream), "ncclAllGather");
    case OpKind::reduce_scatter:
      return check(table_.reduce_scatter(in, out, block, type, op, comm_, stream), "ncclReduceScatter");
    case OpKind::gather:
      send(0, block, how.root);
      for (int peer = 0; is_root && peer < ranks_; ++peer) receive(static_cast<std::size_t>(peer) * block, block, peer);
      return;
    case OpKind::scatter:
      for (int peer = 0; is_root && peer < ranks_; ++peer) send(static_cast<std::size_t>(peer) * block, block, peer);
      return receive(0, block, how.root);
    case OpKind::all_to_all:
      for (int peer = 0; peer < ranks_; ++peer) {
        send(static_cast<std::size_t>(peer) * block, block, peer);
        receive(static_cast<std::size_t>(peer) * block, block, peer);
      }
      return;
    default: send(0, all, (rank_ + 1) % ranks_); receive(0, all, (rank_ + ranks_ - 1) % ranks_);
  }
}

}  // namespace kolo::bench
