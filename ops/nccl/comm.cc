#include "ops/nccl/comm.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include <kolo/float16.h>

namespace kolo {
namespace {

constexpr std::size_t id_words = sizeof(NcclId) / sizeof(std::uint64_t);
constexpr auto drain_timeout = std::chrono::seconds(1);  // other groups may wait for their peers on the stream

/// `name` becomes the call's.
NcclResult issue_one(const NcclTable& table, const NcclCall& call, NcclOp op, NcclComm comm, void* stream,
                     const char*& name) {
  const auto count = static_cast<std::size_t>(call.count);
  const NcclType type = nccl_type(call.type);
  switch (call.kind) {
    case NcclCall::Kind::all_reduce:
      name = "ncclAllReduce";
      return table.all_reduce(call.in, call.out, count, type, op, comm, stream);
    case NcclCall::Kind::reduce:
      name = "ncclReduce";
      return table.reduce(call.in, call.out, count, type, op, call.peer, comm, stream);
    case NcclCall::Kind::broadcast:
      name = "ncclBroadcast";
      return table.broadcast(call.in, call.out, count, type, call.peer, comm, stream);
    case NcclCall::Kind::all_gather:
      name = "ncclAllGather";
      return table.all_gather(call.in, call.out, count, type, comm, stream);
    case NcclCall::Kind::reduce_scatter:
      name = "ncclReduceScatter";
      return table.reduce_scatter(call.in, call.out, count, type, op, comm, stream);
    case NcclCall::Kind::send: name = "ncclSend"; return table.send(call.in, count, type, call.peer, comm, stream);
    case NcclCall::Kind::receive:
      name = "ncclRecv";
      return table.receive(call.out, count, type, call.peer, comm, stream);
  }
  return NcclResult::internal_error;
}

/// Puts calls on a stream as one group.
NcclOutcome issue(const NcclTable& table, std::span<const NcclCall> calls, NcclOp op, NcclComm comm, void* stream) {
  const auto failed = [](NcclResult rc) { return rc != NcclResult::success && rc != NcclResult::in_progress; };
  NcclOutcome outcome{table.group_start(), "ncclGroupStart"};
  if (failed(outcome.result)) return outcome;
  for (const NcclCall& call : calls) {
    outcome.result = issue_one(table, call, op, comm, stream, outcome.call);
    if (!failed(outcome.result)) continue;
    (void)table.group_end();  // else the thread's next calls belong to this group
    return outcome;
  }
  return {table.group_end(), "ncclGroupEnd"};
}

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
  if (rank_.tuning.blocking) {
    made_ = std::make_shared<NcclComm>(nullptr);
    helper_.start(rank_.gpu, [&table = rank_.table, made = made_, id, ranks = group_.size(), rank = group_.rank,
                              ctas = lane_.max_ctas] {
      return NcclOutcome{table.init(made.get(), ranks, id, rank, ctas, true), "ncclCommInitRankConfig"};
    });
    return;
  }
  const NcclResult rc = rank_.table.init(&member_.comm, group_.size(), id, group_.rank, lane_.max_ctas, false);
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
  if (rank_.tuning.register_memory && !group_.is_pair()) {
    for (const NcclCall& call : calls) {
      if (call.in) register_memory(call.in);
      if (call.out) register_memory(call.out);
    }
  }
  const NcclOp op = make_op(method);
  if (!rank_.tuning.blocking || is_connected(calls, method)) {
    const NcclOutcome outcome = issue(rank_.table, calls, op, member_.comm, lane_.stream());
    return check_nccl(rank_.table, outcome.result, member_.comm, outcome.call);
  }
  helper_.start(rank_.gpu,
                [&table = rank_.table, all = std::vector(calls.begin(), calls.end()), op, comm = member_.comm,
                 stream = lane_.stream()] { return issue(table, all, op, comm, stream); });
}

/// Whether NCCL has come to all algorithms of these calls before: it has for sizes between those of earlier ones. They
/// will have been launched.
bool LaneComm::is_connected(std::span<const NcclCall> calls, const NcclMethod& method) {
  const auto bytes_of = [](const NcclCall& call) {
    return static_cast<std::uint64_t>(call.count) * size_of(call.type);
  };
  const auto magnitude = [](std::uint64_t number) { return static_cast<int>(std::bit_width(number)); };
  std::uint64_t all = 0;
  for (const NcclCall& call : calls) all += bytes_of(call);
  bool known = true;
  for (const NcclCall& call : calls) {
    const std::uint64_t bytes = bytes_of(call);
    const Algorithms of{call.kind, call.type,        method.op,     method.factor != 1,
                        call.peer, magnitude(bytes), magnitude(all)};
    const auto [found, is_new] = connected_.try_emplace(of, Sizes{bytes, bytes}, Sizes{all, all});
    auto& [of_call, of_all] = found->second;
    known &= !is_new && of_call.contain(bytes) && of_all.contain(all);
    of_call.extend_to(bytes);
    of_all.extend_to(all);
  }
  return known;
}

bool LaneComm::settled() {
  if (helper_.busy()) return false;
  const NcclOutcome outcome = helper_.take_outcome();
  if (made_) member_.comm = *std::exchange(made_, nullptr);
  check_nccl(rank_.table, outcome.result, member_.comm, outcome.call);
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

/// What a helper makes is aborted when it is made; what it launches, which may wait for ranks that have gone, after a
/// second, while it waits.
void LaneComm::abort() noexcept {
  const auto end = [&table = rank_.table, &gpu = rank_.gpu](NcclComm comm) {
    if (!comm) return;
    const GpuGuard selected(gpu, std::nothrow);
    (void)table.abort(comm);
  };
  if (made_) {
    helper_.forget([end, made = made_] { end(*made); });
  } else if (helper_.busy()) {
    NcclHelper other;
    other.start(rank_.gpu, [end, helper = helper_, comm = member_.comm] {
      const auto deadline = std::chrono::steady_clock::now() + drain_timeout;
      while (helper.busy() && std::chrono::steady_clock::now() < deadline)
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      end(comm);
      return NcclOutcome();
    });
  } else {
    end(member_.comm);
  }
  helper_ = {};
  made_.reset();
  connected_.clear();
  made_op_.reset();
  member_ = {};
  state_ = State::none;
}

void LaneComm::recover() {
  const bool launched = state_ == State::ready;
  leaving_ = launched ? helper_ : NcclHelper();
  abort();
  id_.reset();
  if (!launched) return;
  recovered_by_ = std::chrono::steady_clock::now() + drain_timeout * (leaving_.busy() ? 2 : 1);
  try {
    drained_ = lane_.marks(rank_.gpu);
  } catch (const Error&) {  // of the GPU: nothing runs on it any more
    drained_.clear();
  }
}

/// Unpacking behind NCCL's calls on the stream still writes to tensors, which belong to the program again once it
/// learns of the failure.
bool LaneComm::recovered() noexcept {
  try {
    if (leaving_.busy() && std::chrono::steady_clock::now() < recovered_by_) return false;
    if (leaving_.used()) drained_ = lane_.marks(rank_.gpu);
    leaving_ = {};
    std::erase_if(drained_, [](const auto& point) { return point->passed(); });
    if (!drained_.empty() && std::chrono::steady_clock::now() < recovered_by_) return false;
  } catch (const Error&) {
  }
  drained_.clear();
  return true;
}

void LaneComm::retire() {
  if (state_ != State::ready || helper_.busy()) abort();
  if (member_.comm) rank_.retired.add(std::move(member_));
}

}  // namespace kolo
