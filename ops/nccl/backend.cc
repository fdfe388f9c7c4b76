#include "ops/nccl/backend.h"

#include <fmt/format.h>
#include <kolo/detail/hash.h>

#include <memory>
#include <optional>
#include <utility>

#include "ops/nccl/group.h"

namespace kolo {
namespace {

NcclPlan plan_of(NcclGroup& group, const NcclLane& lane, const Bucket& bucket) {
  NcclRank& shared = group.shared();
  const Signature& signature = bucket.signature;
  const NcclMethod method =
      nccl_method(signature, group.ranks(), bucket.absent.size(), bucket.divide_by, shared.tuning.wide_halves);
  if (!group.is_pair()) (void)shared.staging();
  const NcclStaging staging = group.is_pair() ? NcclStaging() : lane.staging;
  return plan_nccl(bucket, group.ranks(), group.rank(), method, staging, shared.tuning.direct_bytes);
}

/// The group in which the two ranks of a pair agree on ids and times: to hosts it is one like others.
GroupInfo agreeing_group(GroupInfo pair) {
  pair.kind = GroupKind::agreed;
  pair.id = detail::Hash().add("pair").add(pair.id).value();
  return pair;
}

/// A bucket on its way through NCCL. Per step() as far as it goes: its lane's communicator is made; the bucket's turn
/// comes; round after round is put on the lane's stream (pack, NCCL's calls, combine, unpack), each once NCCL says that
/// the one before is on it; the end is marked; the mark has passed.
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
  bool launch();
  void begin_round(const NcclRound& round);
  void end_round(const NcclRound& round);

  std::shared_ptr<NcclGroup> group_;
  const Bucket& bucket_;
  NcclRank& shared_;
  NcclLane& lane_;
  LaneComm& comm_;
  NcclPlan plan_;
  NcclGroup::Turn turn_;
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
      plan_(plan_of(*group_, lane_, bucket)),
      turn_(group_->start(lane, bucket.world_only)) {}

NcclOperation::~NcclOperation() {
  group_->leave(turn_);
}

/// An error of the GPU fails the bucket; whether the GPU still works the next bucket will show.
bool NcclOperation::step() {
  shared_.retired.advance();
  if (!result_) {
    if (!group_->has_come(turn_) || !launch()) return false;
    result_ = shared_.gpu.mark(lane_.stream.get(), begin_ != nullptr);
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
    for (const auto& ready : bucket_.ready) ready->order(lane_.stream.get());
    if (shared_.tuning.timed) begin_ = shared_.gpu.mark(lane_.stream.get(), true);
  }
  for (; round_ < plan_.rounds.size(); ++round_) {
    const NcclRound& round = plan_.rounds[round_];
    if (!std::exchange(in_round_, true)) begin_round(round);
    if (!comm_.settled()) return false;
    end_round(round);
    in_round_ = false;
  }
  return true;
}

void NcclOperation::begin_round(const NcclRound& round) {
  for (const auto& [data, bytes] : round.clear) shared_.gpu.clear(data, bytes, lane_.stream.get());
  lane_.packer.run(round.pack, plan_.method.pack);
  comm_.launch(round.calls, plan_.method);
}

void NcclOperation::end_round(const NcclRound& round) {
  if (round.combination) shared_.gpu.combine(*round.combination, lane_.stream.get());
  lane_.packer.run(round.unpack, plan_.method.unpack);
}

class NcclBackend final : public DeviceBackend {
 public:
  explicit NcclBackend(std::shared_ptr<NcclGroup> group) : group_(std::move(group)) {}

  std::string_view name() const override { return "nccl"; }
  bool supports(const Signature& signature) const override {
    if (signature.device != DeviceKind::cuda || !moves_data(signature.kind)) return false;
    if (group_->is_pair() || signature.kind == OpKind::send_recv)
      return group_->is_pair() && signature.kind == OpKind::send_recv;
    if (group_->ranks() > most_ranks_gathered(group_->shared().urgent_staging_bytes())) return false;
    return !reduces(signature.kind) || reducible(signature.op, signature.dtype);
  }
  std::shared_ptr<const void> reserve(const Signature& /*signature*/) override {
    return group_->is_pair() ? nullptr : group_->shared().staging();
  }
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
