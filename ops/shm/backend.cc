#include "ops/shm/backend.h"

#include <new>
#include <utility>

#include "ops/shm/pipeline.h"
#include "ops/spare_blocks.h"

namespace kolo {
namespace {

/// Of one group: what its operations share, and their memory.
struct ShmGroup {
  ShmPipeline pipeline;
  SpareBlocks operations;
};

class ShmOperation final : public Operation {
 public:
  ShmOperation(ShmGroup& group, const Bucket& bucket)
      : group_(group), job_(bucket, group.pipeline.board().ranks(), group.pipeline.board().tuning()) {
    group_.pipeline.enqueue(job_);
  }
  ShmOperation(const ShmOperation&) = delete;
  ShmOperation& operator=(const ShmOperation&) = delete;
  ~ShmOperation() override {
    if (!job_.complete) group_.pipeline.abandon();
  }

  static void* operator new(std::size_t bytes, ShmGroup& group) { return group.operations.take(bytes); }
  static void operator delete(void* block, ShmGroup& group) noexcept {
    group.operations.give_back(block, sizeof(ShmOperation));
  }
  static void operator delete(ShmOperation* operation, std::destroying_delete_t) noexcept {
    SpareBlocks& operations = operation->group_.operations;
    operation->~ShmOperation();
    operations.give_back(operation, sizeof(ShmOperation));
  }

  bool step() override {
    if (job_.complete) return true;
    const auto before = group_.pipeline.phases_done();
    const bool hope = group_.pipeline.advance();
    moved_ = group_.pipeline.phases_done() != before;
    if (!job_.complete && !hope)
      throw Error(ErrorCode::aborted, "a rank of the group left before the operation was complete");
    return job_.complete;
  }
  bool needs_polling() const override { return false; }
  bool moved() const override { return moved_; }

 private:
  ShmGroup& group_;
  ShmJob job_;
  bool moved_ = false;  // at the last step
};

/// What the backends of one rank, for the world and for groups, have in common.
struct ShmWorld {
  std::shared_ptr<RegionSource> source;
  std::span<Doorbell> doorbells;
  ShmTuning tuning;
};

/// Whether results depend on one element of each rank only.
constexpr bool combines_elements(ReduceOp op) {
  return op <= ReduceOp::logical_or;
}

class ShmBackend final : public Backend {
 public:
  ShmBackend(ShmWorld world, ShmBoard board, const GroupInfo& group)
      : world_(std::move(world)), group_{{std::move(board), world_.source->memory(), group.ranks}, {}} {}

  std::string_view name() const override { return "shm"; }
  bool supports(const Signature& signature) const override {
    if (signature.device != DeviceKind::cpu || !shm_method(signature.kind, false)) return false;
    return !reduces(signature.kind) || (combines_elements(signature.op) && reducible(signature));
  }
  std::unique_ptr<Operation> start(const Bucket& bucket) override {
    return std::unique_ptr<Operation>(new (group_) ShmOperation(group_, bucket));
  }
  std::unique_ptr<Backend> for_group(const GroupInfo& group) override {
    return group.is_pair() ? nullptr : make(world_, group);
  }
  std::shared_ptr<MemorySource> memory() override { return world_.source->memory(); }
  void abandon() noexcept override {
    world_.source->abandon();
    group_.pipeline.abandon();
  }

  static std::unique_ptr<Backend> make(const ShmWorld& world, const GroupInfo& group) {
    auto region = world.source->region_for(group, ShmBoard::bytes(group.size(), world.tuning));
    if (!region) return nullptr;
    std::vector<Doorbell*> doorbells;
    for (const int rank : group.ranks) {
      const bool self = rank == group.ranks[static_cast<std::size_t>(group.rank)];
      if (!self && !world.doorbells.empty()) doorbells.push_back(&world.doorbells[static_cast<std::size_t>(rank)]);
    }
    return std::make_unique<ShmBackend>(
        world, ShmBoard(std::move(region), group.rank, group.size(), world.tuning, std::move(doorbells)), group);
  }

 private:
  ShmWorld world_;
  ShmGroup group_;
};

}  // namespace

std::unique_ptr<Backend> shm_backend(std::shared_ptr<RegionSource> source, const GroupInfo& world,
                                     std::span<Doorbell> doorbells, const ShmTuning& tuning) {
  return ShmBackend::make({std::move(source), doorbells, tuning}, world);
}

}  // namespace kolo
