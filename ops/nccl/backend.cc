#include "ops/nccl/backend.h"

#include <fmt/format.h>

#include <memory>
#include <optional>
#include <utility>

#include "ops/nccl/group.h"

namespace kolo {
namespace {

NcclPlan plan_of(NcclGroup& group, const Bucket& bucket) {
  NcclRank& shared = group.shared();
  const Signature& signature = bucket.signature;
  const NcclMethod method =
      nccl_method(signature, group.ranks(), bucket.absent.size(), bucket.divide_by, shared.tuning.wide_halves);
  return plan_nccl(bucket, group.ranks(), group.rank(), method, {shared.staging().get(), shared.tuning.staging_bytes},
                   shared.tuning.direct_bytes);
}

/// A bucket on its way through NCCL. Per step() as far as it goes: the communicator is made; the bucket's turn comes;
/// round after round is put on the stream (pack, NCCL's calls, combine, unpack), each once NCCL says that the one
/// before is on it; the end is marked; the mark has passed.
class NcclOperation final : public Operation {
 public:
  NcclOperation(std::shared_ptr<NcclGroup> group, const Bucket& bucket);
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
  NcclPlan plan_;
  std::uint64_t number_;
  std::optional<NcclGroup::Turn> turn_;
  std::size_t round_ = 0;
  bool in_round_ = false;
  bool ordered_ = false;                      // the stream waits for those that wrote the inputs
  std::shared_ptr<const DevicePoint> begin_;  // if that is measured
  std::shared_ptr<const DevicePoint> result_;
  std::optional<double> seconds_;
  GpuRange range_;
};

NcclOperation::NcclOperation(std::shared_ptr<NcclGroup> group, const Bucket& bucket)
    : group_(std::move(group)),
      bucket_(bucket),
      plan_(plan_of(*group_, bucket)),
      number_(group_->start(bucket.world_only)) {}

NcclOperation::~NcclOperation() {
  if (turn_) group_->leave(*turn_);
}

/// An error of the GPU fails the bucket; whether the GPU still works the next bucket will show.
bool NcclOperation::step() {
  group_->shared().retired.advance();
  if (!result_) {
    if (!group_->prepare()) return false;
    if (!turn_ && group_->may_enter(number_)) turn_ = group_->enter(bucket_.world_only);
    if (!turn_ || !group_->has_come(*turn_) || !launch()) return false;
    result_ = group_->shared().gpu.mark(group_->shared().stream.get(), begin_ != nullptr);
    group_->leave(*std::exchange(turn_, std::nullopt));
  }
  if (!result_->passed()) {
    (void)group_->settled();  // throws if something has gone wrong on the way
    return false;
  }
  if (begin_) seconds_ = group_->shared().gpu.seconds_between(*begin_, *result_);
  range_ = GpuRange();
  return true;
}

/// Whether everything is on the stream.
bool NcclOperation::launch() {
  NcclRank& shared = group_->shared();
  if (!std::exchange(ordered_, true)) {
    range_ =
        GpuRange(shared.gpu, fmt::format("{} {} ({} tensors, {} bytes)", to_string(bucket_.signature.kind),
                                         to_string(bucket_.signature.dtype), bucket_.tensors.size(), bucket_.bytes()));
    for (const auto& ready : bucket_.ready) ready->order(shared.stream.get());
    if (shared.tuning.timed) begin_ = shared.gpu.mark(shared.stream.get(), true);
  }
  for (; round_ < plan_.rounds.size(); ++round_) {
    const NcclRound& round = plan_.rounds[round_];
    if (!std::exchange(in_round_, true)) begin_round(round);
    if (!group_->settled()) return false;
    end_round(round);
    in_round_ = false;
  }
  return true;
}

void NcclOperation::begin_round(const NcclRound& round) {
  NcclRank& shared = group_->shared();
  for (const auto& [data, bytes] : round.clear) shared.gpu.clear(data, bytes, shared.stream.get());
  shared.packer.run(round.pack, plan_.method.pack);
  group_->launch(round.calls, plan_.method);
}

void NcclOperation::end_round(const NcclRound& round) {
  NcclRank& shared = group_->shared();
  if (round.combination) shared.gpu.combine(*round.combination, shared.stream.get());
  shared.packer.run(round.unpack, plan_.method.unpack);
}

class NcclBackend final : public DeviceBackend {
 public:
  explicit NcclBackend(std::shared_ptr<NcclGroup> group) : group_(std::move(group)) {}

  std::string_view name() const override { return "nccl"; }
  bool supports(const Signature& signature) const override {
    if (signature.device != DeviceKind::cuda || !moves_data(signature.kind) || signature.kind == OpKind::send_recv)
      return false;
    if (group_->ranks() > most_ranks_gathered(group_->shared().tuning.staging_bytes)) return false;
    return !reduces(signature.kind) || reducible(signature.op, signature.dtype);
  }
  std::shared_ptr<const void> reserve(const Signature& /*signature*/) override { return group_->shared().staging(); }
  std::unique_ptr<Operation> start(const Bucket& bucket) override {
    return std::make_unique<NcclOperation>(group_, bucket);
  }
  std::unique_ptr<Backend> for_group(const GroupInfo& group) override {
    auto host = group.is_pair() ? nullptr : group_->host().for_group(group);
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
