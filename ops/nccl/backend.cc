#include "ops/nccl/backend.h"

#include <fmt/format.h>
#include <kolo/detail/hash.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "ops/nccl/group.h"

namespace kolo {
namespace {

/// `in_place`: tensors may be read and written where they are.
NcclPlan plan_of(NcclGroup& group, const NcclStaging& memory, const Bucket& bucket, bool in_place) {
  const NcclTuning& tuning = group.shared().tuning;
  NcclMethod method =
      nccl_method(bucket.signature, group.ranks(), bucket.absent.size(), bucket.divide_by, tuning.wide_halves);
  if (!in_place && method.way == NcclWay::direct) method.way = NcclWay::widened;
  const NcclStaging staging = group.is_pair() ? NcclStaging() : memory;
  return plan_nccl(bucket, group.ranks(), group.rank(), method, staging, tuning.direct_bytes);
}

/// Of memory that is registered: NCCL must find the same offsets in pieces of the same sizes on all ranks, or none in
/// such memory. A hash of where the tensors lie; 0 if one is in none. What only the root has is not looked at.
std::uint64_t placement_of(const NcclMemory& memory, const Bucket& bucket, int ranks, int rank) {
  const OpKind kind = bucket.signature.kind;
  detail::Hash hash;
  const auto add = [&](const Tensor& tensor) {
    const auto [piece, bytes] = memory.piece_of(tensor.data);
    if (!piece) return false;
    hash.add(bytes).add(static_cast<std::uint64_t>(static_cast<const std::byte*>(tensor.data) - piece.get()));
    return true;
  };
  for (const BucketTensor& tensor : bucket.tensors) {
    if (flat_length(kind, tensor, ranks) == 0) continue;
    const bool reads = traits(kind).reads == Side::every_rank, writes = traits(kind).writes == Side::every_rank;
    const bool own_in = traits(kind).in == Rows::own && writes &&
                        tensor.in.data == address(tensor.out, out_block(kind, tensor, ranks, rank, rank).begin);
    const bool own_out = traits(kind).out == Rows::dealt && reads &&
                         tensor.out.data == address(tensor.in, in_block(kind, tensor, ranks, rank, rank).begin);
    hash.add(own_in).add(own_out);  // a rank's own block of the other side
    if (reads && !own_in && !add(tensor.in)) return 0;
    if (writes && !own_out && !add(tensor.out)) return 0;
  }
  return hash.value();
}

/// The group in which the two ranks of a pair agree on ids and times: to hosts it is one like others.
GroupInfo agreeing_group(GroupInfo pair) {
  pair.kind = GroupKind::agreed;
  pair.id = detail::Hash().add("pair").add(pair.id).value();
  return pair;
}

/// Whether NCCL's calls of a round read or write the memory to pack into.
bool uses_staging(const NcclRound& round, const NcclStaging& staging) {
  const auto inside = [&](const std::byte* data) {
    return data && data >= staging.data && data < staging.data + staging.bytes;
  };
  return std::ranges::any_of(round.calls, [&](const NcclCall& call) { return inside(call.in) || inside(call.out); });
}

/// A bucket on its way through NCCL. Per step() as far as it goes: its lane's communicator is made; the bucket's turn
/// comes; round after round is put on the lane's streams (pack, NCCL's calls, combine, unpack), each once NCCL says
/// that the one before is on it; the end is marked; the mark has passed.
class NcclOperation final : public Operation {
 public:
  NcclOperation(std::shared_ptr<NcclGroup> group, std::size_t lane, const Bucket& bucket);
  ~NcclOperation() override;
  NcclOperation(const NcclOperation&) = delete;
  NcclOperation& operator=(const NcclOperation&) = delete;

  bool step() override;
  bool needs_polling() const override { return true; }
  std::shared_ptr<const DevicePoint> result() const override { return result_; }
  std::optional<double> seconds() const override { return seconds_; }

 private:
  bool registers() const { return shared_.tuning.register_memory && !group_->is_pair(); }
  bool launch();
  NcclGroup::Turn start_turn(std::size_t lane);
  void follow(void* stream, void* other);
  void begin_round(const NcclRound& round);
  void end_round(const NcclRound& round);

  std::shared_ptr<NcclGroup> group_;
  const Bucket& bucket_;
  NcclRank& shared_;
  NcclLane& lane_;
  LaneComm& comm_;
  NcclGroup::Turn turn_;
  NcclLane::Part& part_;
  std::optional<NcclPlan> plan_;  // none: whether tensors are read where they are is agreed with the turn
  std::size_t round_ = 0;
  bool in_round_ = false;
  bool ordered_ = false;                      // the stream waits for those that wrote the inputs
  std::shared_ptr<const DevicePoint> begin_;  // if that is measured
  std::shared_ptr<const DevicePoint> result_;
  std::optional<double> seconds_;
  GpuRange range_;
};

NcclOperation::NcclOperation(std::shared_ptr<NcclGroup> group, std::size_t lane, const Bucket& bucket)
    : group_(std::move(group)),
      bucket_(bucket),
      shared_(group_->shared()),
      lane_(shared_.lanes[lane]),
      comm_(group_->comm(lane)),
      turn_(start_turn(lane)),
      part_(lane_.part_for(turn_.number)) {
  if (!registers()) plan_ = plan_of(*group_, part_.staging, bucket_, true);
}

NcclGroup::Turn NcclOperation::start_turn(std::size_t lane) {
  group_->reserve();
  if (!registers()) return group_->start(lane, bucket_.world_only);
  const auto place = placement_of(*shared_.memory, bucket_, group_->ranks(), group_->rank());
  return group_->start(lane, bucket_.world_only, place);
}

NcclOperation::~NcclOperation() {
  group_->leave(turn_);
}

/// An error of the GPU fails the bucket; whether the GPU still works the next bucket will show.
bool NcclOperation::step() {
  shared_.retired.advance();
  if (!result_) {
    if (!group_->has_come(turn_)) return false;
    if (!plan_) plan_ = plan_of(*group_, part_.staging, bucket_, turn_.alike());
    if (!launch()) return false;
    follow(lane_.unpack_stream(), lane_.stream());
    result_ = shared_.gpu.mark(lane_.unpack_stream(), begin_ != nullptr);
    group_->leave(turn_);
  }
  if (!result_->passed()) {
    (void)comm_.settled();  // throws if something has gone wrong on the way
    return false;
  }
  if (begin_) seconds_ = shared_.gpu.seconds_between(*begin_, *result_);
  range_ = GpuRange();
  return true;
}

/// Whether everything is on the stream.
bool NcclOperation::launch() {
  if (!std::exchange(ordered_, true)) {
    range_ =
        GpuRange(shared_.gpu, fmt::format("{} {} ({} tensors, {} bytes)", to_string(bucket_.signature.kind),
                                          to_string(bucket_.signature.dtype), bucket_.tensors.size(), bucket_.bytes()));
    for (const auto& ready : bucket_.ready) {
      ready->order(lane_.stream());
      if (lane_.overlaps) ready->order(lane_.pack_stream());
    }
    if (shared_.tuning.timed) begin_ = shared_.gpu.mark(lane_.stream(), true);
  }
  for (; round_ < plan_->rounds.size(); ++round_) {
    const NcclRound& round = plan_->rounds[round_];
    if (!std::exchange(in_round_, true)) begin_round(round);
    if (!comm_.settled()) return false;
    end_round(round);
    in_round_ = false;
  }
  return true;
}

/// What is put on `stream` from now on waits for what is on `other`.
void NcclOperation::follow(void* stream, void* other) {
  if (stream != other) shared_.gpu.mark(other)->order(stream);
}

void NcclOperation::begin_round(const NcclRound& round) {
  if (lane_.overlaps && part_.unused && uses_staging(round, part_.staging)) {
    part_.unused->order(lane_.pack_stream());
    part_.unused->order(lane_.stream());
  }
  for (const auto& [data, bytes] : round.clear) shared_.gpu.clear(data, bytes, lane_.pack_stream());
  lane_.packer->run(round.pack, plan_->method.pack);
  if (!round.clear.empty() || !round.pack.empty()) follow(lane_.stream(), lane_.pack_stream());
  comm_.launch(round.calls, plan_->method);
}

void NcclOperation::end_round(const NcclRound& round) {
  const bool uses = lane_.overlaps && uses_staging(round, part_.staging);
  if (!uses && round.unpack.empty() && !round.combination) return;
  follow(lane_.unpack_stream(), lane_.stream());
  if (round.combination) shared_.gpu.combine(*round.combination, lane_.unpack_stream());
  lane_.unpacker->run(round.unpack, plan_->method.unpack);
  if (uses) part_.unused = shared_.gpu.mark(lane_.unpack_stream());
}

class NcclBackend final : public DeviceBackend {
 public:
  explicit NcclBackend(std::shared_ptr<NcclGroup> group) : group_(std::move(group)) {}

  std::string_view name() const override { return "nccl"; }
  bool supports(const Signature& signature) const override {
    if (signature.device != DeviceKind::cuda || !moves_data(signature.kind)) return false;
    if (group_->is_pair() || signature.kind == OpKind::send_recv)
      return group_->is_pair() && signature.kind == OpKind::send_recv;
    if (reduces(signature.kind) && !reducible(signature.op, signature.dtype)) return false;
    return can_plan(signature, group_->ranks(), group_->shared().least_staging_bytes());
  }
  std::shared_ptr<const void> reserve(const Signature& /*signature*/) override { return group_->reserve(); }
  std::unique_ptr<Operation> start(const Bucket& bucket) override {
    return std::make_unique<NcclOperation>(group_, group_->shared().lane_of(bucket, group_->ranks()), bucket);
  }
  std::unique_ptr<Backend> for_group(const GroupInfo& group) override {
    auto host = group_->host().for_group(group.is_pair() ? agreeing_group(group) : group);
    if (!host) return nullptr;
    return std::make_unique<NcclBackend>(std::make_shared<NcclGroup>(group_->shared_rank(), group, std::move(host)));
  }
  Introduction introduction() override { return group_->host().introduction(); }
  bool introduce(std::span<const Introduction> members) override { return group_->host().introduce(members); }
  std::shared_ptr<MemorySource> memory() override { return group_->shared().memory; }
  void progress(bool /*in_flight*/) override { group_->shared().retired.advance(); }
  void recover() override { group_->recover(); }
  bool recovered() override { return group_->recovered(); }
  void abort_device_work() noexcept override { group_->abandon(); }
  void abandon() noexcept override { group_->abandon(); }

 private:
  std::shared_ptr<NcclGroup> group_;
};

}  // namespace

std::unique_ptr<DeviceBackend> nccl_backend(std::shared_ptr<NcclRank> rank, const GroupInfo& world,
                                            std::unique_ptr<Backend> host) {
  return std::make_unique<NcclBackend>(std::make_shared<NcclGroup>(std::move(rank), world, std::move(host)));
}

}  // namespace kolo
