#include "ops/nccl/operation.h"

#include <fmt/format.h>

#include <utility>

namespace kolo {
namespace {

NcclPlan plan_of(NcclGroup& group, const Bucket& bucket) {
  NcclRank& shared = group.shared();
  const Signature& signature = bucket.signature;
  const NcclMethod method =
      nccl_method(signature, group.ranks(), bucket.absent.size(), bucket.divide_by, shared.tuning.wide_halves);
  return plan_nccl(bucket, group.ranks(), group.rank(), method, {shared.staging.get(), shared.tuning.staging_bytes},
                   shared.tuning.direct_bytes);
}

}  // namespace

NcclOperation::NcclOperation(std::shared_ptr<NcclGroup> group, const Bucket& bucket)
    : group_(std::move(group)),
      bucket_(bucket),
      number_(group_->start(bucket.world_only)),
      plan_(plan_of(*group_, bucket)) {}

NcclOperation::~NcclOperation() {
  if (turn_) group_->leave(*turn_);
}

/// What fails of the GPU fails the bucket; whether the GPU is of any more use the next one will show.
bool NcclOperation::step() {
  try {
    return advance();
  } catch (const OperationFault&) {
    throw;
  } catch (const Error& error) {
    throw OperationFault(error.code(), error.what());
  }
}

bool NcclOperation::advance() {
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

}  // namespace kolo
