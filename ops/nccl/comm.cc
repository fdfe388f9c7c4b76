#include "ops/nccl/comm.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include <kolo/float16.h>

namespace kolo {
namespace {

constexpr std::size_t id_words = sizeof(NcclId) / sizeof(std::uint64_t);
constexpr auto drain_timeout = std::chrono::seconds(1);  // other groups may wait for their peers on the stream

}  // namespace

bool LaneComm::prepare(HostExchange& exchange) {
  if (state_ == State::ready) return true;
  exchange.step();
  if (state_ == State::none) exchange_id(exchange);
  if (state_ == State::exchanging && id_->complete) start_init();
  if (state_ != State::initialising || !settled()) return false;
  state_ = State::ready;
  const GpuGuard selected(rank_.gpu);
  if (rank_.tuning.register_memory && !group_.is_pair()) register_memory(rank_.staging().get());
  return true;
}

/// Rank 0 makes the id; the others' words are zeros.
void LaneComm::exchange_id(HostExchange& exchange) {
  std::vector<std::uint64_t> words(id_words);
  if (group_.rank == 0) {
    NcclId id{};
    const GpuGuard selected(rank_.gpu);
    check_nccl(rank_.table, rank_.table.get_unique_id(&id), nullptr, "ncclGetUniqueId");
    std::memcpy(words.data(), &id, sizeof(id));
  }
  id_ = exchange.largest(std::move(words));
  state_ = State::exchanging;
}

void LaneComm::start_init() {
  const auto& words = id_->values;
  if (std::ranges::all_of(words, [](std::uint64_t word) { return word == 0; })) return;  // rank 0 has recovered already
  state_ = State::initialising;
  NcclId id{};
  std::memcpy(&id, words.data(), sizeof(id));
  const GpuGuard selected(rank_.gpu);
  const NcclResult rc = rank_.table.init(&member_.comm, group_.size(), id, group_.rank, lane_.max_ctas);
  check_nccl(rank_.table, rc, member_.comm, "ncclCommInitRankConfig");
}

void LaneComm::skip_exchange(HostExchange& exchange) {
  if (!id_) id_ = exchange.largest(std::vector<std::uint64_t>(id_words));
}

/// A sum whose inputs are multiplied on their way; the factor is an element of the type.
NcclOp LaneComm::make_op(const NcclMethod& method) {
  if (method.factor == 1) return method.op;
  const double f64 = method.factor;
  const auto f32 = static_cast<float>(f64);
  const Float16 f16 = to_float16(f32);
  const BFloat16 bf16 = to_bfloat16(f32);
  const void* scalar = &f64;
  if (method.wire == DType::f32) scalar = &f32;
  if (method.wire == DType::f16) scalar = &f16;
  if (method.wire == DType::bf16) scalar = &bf16;
  NcclOp op{};
  check_nccl(rank_.table, rank_.table.create_pre_mul_sum(&op, scalar, nccl_type(method.wire), member_.comm),
             member_.comm, "ncclRedOpCreatePreMulSum");
  made_op_ = op;
  return op;
}

void LaneComm::launch(std::span<const NcclCall> calls, const NcclMethod& method) {
  if (calls.empty()) return;
  const GpuGuard selected(rank_.gpu);
  if (rank_.tuning.register_memory) {
    for (const NcclCall& call : calls) {
      if (call.in) register_memory(call.in);
      if (call.out) register_memory(call.out);
    }
  }
  const NcclOp op = make_op(method);
  check_nccl(rank_.table, rank_.table.group_start(), member_.comm, "ncclGroupStart");
  try {
    for (const NcclCall& call : calls) issue(call, op);
  } catch (const Error&) {
    (void)rank_.table.group_end();  // else the thread's next calls belong to this group
    throw;
  }
  check_nccl(rank_.table, rank_.table.group_end(), member_.comm, "ncclGroupEnd");
}

void LaneComm::issue(const NcclCall& call, NcclOp op) {
  const NcclTable& table = rank_.table;
  void* const stream = lane_.stream.get();
  const auto count = static_cast<std::size_t>(call.count);
  const NcclType type = nccl_type(call.type);
  switch (call.kind) {
    case NcclCall::Kind::all_reduce:
      return check_nccl(table, table.all_reduce(call.in, call.out, count, type, op, member_.comm, stream), member_.comm,
                        "ncclAllReduce");
    case NcclCall::Kind::reduce:
      return check_nccl(table, table.reduce(call.in, call.out, count, type, op, call.peer, member_.comm, stream),
                        member_.comm, "ncclReduce");
    case NcclCall::Kind::broadcast:
      return check_nccl(table, table.broadcast(call.in, call.out, count, type, call.peer, member_.comm, stream),
                        member_.comm, "ncclBroadcast");
    case NcclCall::Kind::all_gather:
      return check_nccl(table, table.all_gather(call.in, call.out, count, type, member_.comm, stream), member_.comm,
                        "ncclAllGather");
    case NcclCall::Kind::reduce_scatter:
      return check_nccl(table, table.reduce_scatter(call.in, call.out, count, type, op, member_.comm, stream),
                        member_.comm, "ncclReduceScatter");
    case NcclCall::Kind::send:
      return check_nccl(table, table.send(call.in, count, type, call.peer, member_.comm, stream), member_.comm,
                        "ncclSend");
    case NcclCall::Kind::receive:
      return check_nccl(table, table.receive(call.out, count, type, call.peer, member_.comm, stream), member_.comm,
                        "ncclRecv");
  }
}

bool LaneComm::settled() {
  NcclResult state = NcclResult::success;
  check_nccl(rank_.table, rank_.table.async_error(member_.comm, &state), member_.comm, "ncclCommGetAsyncError");
  check_nccl(rank_.table, state, member_.comm, "NCCL, asynchronously,");
  if (state == NcclResult::in_progress) return false;
  if (made_op_) (void)rank_.table.destroy_op(*made_op_, member_.comm);
  made_op_.reset();
  return true;
}

/// Registers the piece of session memory that holds `data`, once with each communicator, and keeps it alive as long.
void LaneComm::register_memory(const std::byte* data) {
  auto after = member_.registered.upper_bound(data);
  const auto [piece, bytes] = rank_.memory->piece_of(data);
  if (!piece || (after != member_.registered.begin() && (--after)->first == piece.get())) return;
  void* handle = nullptr;
  check_nccl(rank_.table, rank_.table.register_memory(member_.comm, piece.get(), bytes, &handle), member_.comm,
             "ncclCommRegister");
  member_.registered[piece.get()] = piece;
  member_.handles.push_back(handle);
}

void LaneComm::abort() noexcept {
  if (member_.comm) {
    const GpuGuard selected(rank_.gpu, std::nothrow);
    (void)rank_.table.abort(member_.comm);
  }
  made_op_.reset();
  member_ = {};
  state_ = State::none;
}

void LaneComm::recover() {
  const bool launched = state_ == State::ready;
  abort();
  id_.reset();
  if (!launched) return;
  recovered_by_ = std::chrono::steady_clock::now() + drain_timeout;
  try {
    drained_ = rank_.gpu.mark(lane_.stream.get());
  } catch (const Error&) {  // of the GPU: nothing runs on it any more
    drained_.reset();
  }
}

/// Unpacking behind NCCL's calls on the stream still writes to tensors, which belong to the program again once it
/// learns of the failure.
bool LaneComm::recovered() noexcept {
  try {
    if (drained_ && !drained_->passed() && std::chrono::steady_clock::now() < recovered_by_) return false;
  } catch (const Error&) {
  }
  drained_.reset();
  return true;
}

void LaneComm::retire() {
  if (state_ != State::ready) abort();
  if (member_.comm) rank_.retired.add(std::move(member_));
}

}  // namespace kolo
