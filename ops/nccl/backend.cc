#include "ops/nccl/backend.h"

#include <utility>

#include "ops/nccl/operation.h"

namespace kolo {
namespace {

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
  std::unique_ptr<Operation> start(const Bucket& bucket) override {
    return std::make_unique<NcclOperation>(group_, bucket);
  }
  std::unique_ptr<Backend> for_group(const GroupInfo& group) override {
    auto host = group.pair ? nullptr : group_->host().for_group(group);
    if (!host) return nullptr;
    return std::make_unique<NcclBackend>(std::make_shared<NcclGroup>(group_->shared_rank(), group, std::move(host)));
  }
  std::shared_ptr<MemorySource> memory() override { return group_->shared().memory; }
  void recover() override { group_->recover(); }
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
