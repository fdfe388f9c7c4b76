#include "ops/nccl/group.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include <kolo/float16.h>

namespace kolo {
namespace {

constexpr std::size_t id_words = sizeof(NcclId) / sizeof(std::uint64_t);
constexpr auto drain_timeout = std::chrono::seconds(1);     // other groups may wait for their peers on the stream
constexpr auto finalize_timeout = std::chrono::seconds(5);  // peers may end their communicators later

}  // namespace

NcclGroup::NcclGroup(std::shared_ptr<NcclRank> rank, const GroupInfo& info, std::unique_ptr<Backend> host)
    : rank_(std::move(rank)), info_(info), exchange_(std::move(host)) {}

/// Collective, like everything that is made for a group.
NcclGroup::~NcclGroup() {
  if (state_ != State::ready) end_comm();
  if (!comm_ || abandoned_) return;
  const NcclTable& table = rank_->table;
  const GpuGuard selected(rank_->gpu, std::nothrow);
  const auto deadline = std::chrono::steady_clock::now() + finalize_timeout;
  const auto at_rest = [&](NcclResult state) {
    while (state == NcclResult::in_progress && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::yield();
      if (table.async_error(comm_, &state) != NcclResult::success) break;
    }
    return state == NcclResult::success;
  };
  bool ended = at_rest(NcclResult::in_progress);
  for (std::size_t i = 0; ended && i < registered_handles_.size(); ++i)
    (void)table.deregister_memory(comm_, registered_handles_[i]);
  ended = ended && at_rest(table.finalize(comm_));
  if (ended)
    (void)table.destroy(comm_);
  else
    (void)table.abort(comm_);
}

bool NcclGroup::prepare() {
  if (state_ == State::ready) return true;
  exchange_.step();
  if (state_ == State::none) exchange_id();
  if (state_ == State::exchanging && id_->complete) start_init();
  if (state_ != State::initialising || !settled()) return false;
  state_ = State::ready;
  const GpuGuard selected(rank_->gpu);
  if (rank_->tuning.register_memory) register_memory(rank_->staging.get());
  return true;
}

/// Rank 0 makes the id; the others' words are zeros.
void NcclGroup::exchange_id() {
  std::vector<std::uint64_t> words(id_words);
  if (info_.rank == 0) {
    NcclId id{};
    const GpuGuard selected(rank_->gpu);
    check_nccl(rank_->table, rank_->table.get_unique_id(&id), nullptr, "ncclGetUniqueId");
    std::memcpy(words.data(), &id, sizeof(id));
  }
  id_ = exchange_.largest(std::move(words));
  state_ = State::exchanging;
}

void NcclGroup::start_init() {
  const auto& words = id_->values;
  if (std::ranges::all_of(words, [](std::uint64_t word) { return word == 0; })) return;  // rank 0 has recovered already
  state_ = State::initialising;
  NcclId id{};
  std::memcpy(&id, words.data(), sizeof(id));
  const GpuGuard selected(rank_->gpu);
  const NcclResult rc = rank_->table.init(&comm_, info_.size(), id, info_.rank);
  check_nccl(rank_->table, rc, comm_, "ncclCommInitRankConfig");
}

// ---- order
// -----------------------------------------------------------------------------------------------------------

NcclGroup::Turn NcclGroup::enter(bool world_only) {
  ++entered_;
  Turn turn{rank_->order.enter(info_.id), nullptr};
  if (world_only) {
    rank_->order.settle(turn.place, turn.place->time);
  } else {
    turn.answer = exchange_.largest({turn.place->time});
    --times_owed_;
  }
  return turn;
}

bool NcclGroup::has_come(Turn& turn) {
  if (!turn.place->settled) {
    exchange_.step();
    if (!turn.answer->complete) return false;
    rank_->order.settle(turn.place, turn.answer->values.front());
  }
  return rank_->order.first(turn.place);
}

// ---- launches
// --------------------------------------------------------------------------------------------------------

/// A sum whose inputs are multiplied on their way; the factor is an element of the type.
NcclOp NcclGroup::make_op(const NcclMethod& method) {
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
  check_nccl(rank_->table, rank_->table.create_pre_mul_sum(&op, scalar, nccl_type(method.wire), comm_), comm_,
             "ncclRedOpCreatePreMulSum");
  made_op_ = op;
  return op;
}

void NcclGroup::launch(std::span<const NcclCall> calls, const NcclMethod& method) {
  if (calls.empty()) return;
  const GpuGuard selected(rank_->gpu);
  if (rank_->tuning.register_memory) {
    for (const NcclCall& call : calls) {
      if (call.in) register_memory(call.in);
      if (call.out) register_memory(call.out);
    }
  }
  const NcclOp op = make_op(method);
  check_nccl(rank_->table, rank_->table.group_start(), comm_, "ncclGroupStart");
  try {
    for (const NcclCall& call : calls) issue(call, op);
  } catch (const Error&) {
    (void)rank_->table.group_end();  // else the thread's next calls belong to this group
    throw;
  }
  check_nccl(rank_->table, rank_->table.group_end(), comm_, "ncclGroupEnd");
}

void NcclGroup::issue(const NcclCall& call, NcclOp op) {
  const NcclTable& table = rank_->table;
  void* const stream = rank_->stream.get();
  const auto count = static_cast<std::size_t>(call.count);
  const NcclType type = nccl_type(call.type);
  switch (call.kind) {
    case NcclCall::Kind::all_reduce:
      return check_nccl(table, table.all_reduce(call.in, call.out, count, type, op, comm_, stream), comm_,
                        "ncclAllReduce");
    case NcclCall::Kind::reduce:
      return check_nccl(table, table.reduce(call.in, call.out, count, type, op, call.peer, comm_, stream), comm_,
                        "ncclReduce");
    case NcclCall::Kind::broadcast:
      return check_nccl(table, table.broadcast(call.in, call.out, count, type, call.peer, comm_, stream), comm_,
                        "ncclBroadcast");
    case NcclCall::Kind::all_gather:
      return check_nccl(table, table.all_gather(call.in, call.out, count, type, comm_, stream), comm_, "ncclAllGather");
    case NcclCall::Kind::reduce_scatter:
      return check_nccl(table, table.reduce_scatter(call.in, call.out, count, type, op, comm_, stream), comm_,
                        "ncclReduceScatter");
    case NcclCall::Kind::send:
      return check_nccl(table, table.send(call.in, count, type, call.peer, comm_, stream), comm_, "ncclSend");
    case NcclCall::Kind::receive:
      return check_nccl(table, table.receive(call.out, count, type, call.peer, comm_, stream), comm_, "ncclRecv");
  }
}

bool NcclGroup::settled() {
  NcclResult state = NcclResult::success;
  check_nccl(rank_->table, rank_->table.async_error(comm_, &state), comm_, "ncclCommGetAsyncError");
  check_nccl(rank_->table, state, comm_, "NCCL, asynchronously,");
  if (state == NcclResult::in_progress) return false;
  if (made_op_) (void)rank_->table.destroy_op(*made_op_, comm_);
  made_op_.reset();
  return true;
}

/// Registers the piece of session memory that holds `data`, once with each communicator, and keeps it alive as long.
void NcclGroup::register_memory(const std::byte* data) {
  auto after = registered_.upper_bound(data);
  const auto [piece, bytes] = rank_->memory->piece_of(data);
  if (!piece || (after != registered_.begin() && (--after)->first == piece.get())) return;
  void* handle = nullptr;
  check_nccl(rank_->table, rank_->table.register_memory(comm_, piece.get(), bytes, &handle), comm_, "ncclCommRegister");
  registered_[piece.get()] = piece;
  registered_handles_.push_back(handle);
}

// ---- the end
// ---------------------------------------------------------------------------------------------------------

void NcclGroup::end_comm() noexcept {
  if (comm_) {
    const GpuGuard selected(rank_->gpu, std::nothrow);
    (void)rank_->table.abort(std::exchange(comm_, nullptr));
  }
  made_op_.reset();
  registered_handles_.clear();
  registered_.clear();
  state_ = State::none;
}

/// Every rank takes part in every exchange, so this one starts those that it has not come to.
void NcclGroup::recover() {
  if (started_ > 0 && !id_) exchange_.largest(std::vector<std::uint64_t>(id_words));
  for (; times_owed_ > 0; --times_owed_) exchange_.largest({0});
  id_.reset();
  started_ = entered_ = 0;
  end_comm();
  drain();
}

/// Unpacking behind NCCL's calls on the stream still writes to tensors, which belong to the program again once it
/// learns of the failure.
void NcclGroup::drain() noexcept {
  try {
    const auto deadline = std::chrono::steady_clock::now() + drain_timeout;
    const auto point = rank_->gpu.mark(rank_->stream.get());
    while (!point->passed() && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
  } catch (const Error&) {  // of the GPU: nothing runs on it any more
  }
}

void NcclGroup::abandon() noexcept {
  if (std::exchange(abandoned_, true)) return;
  end_comm();
  exchange_.abandon();
}

}  // namespace kolo
