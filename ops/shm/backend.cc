#include "ops/shm/backend.h"

#include <fmt/format.h>

#include <new>
#include <optional>
#include <utility>

#include "ops/host/machine.h"
#include "ops/shm/pipeline.h"
#include "ops/shm/table_file.h"
#include "ops/spare_blocks.h"

namespace kolo {
namespace {

/// One that was complete when it was started; it belongs to its backend.
class ShmDone final : public Operation {
 public:
  explicit ShmDone(const ShmBoard& board) : board_(board) {}
  static void operator delete(ShmDone*, std::destroying_delete_t) noexcept {}

  bool step() override { return true; }
  bool needs_polling() const override { return false; }
  const char* method() const override { return text_of({ShmWay::ring, board_.tuning().chunk}); }

 private:
  const ShmBoard& board_;
};

/// Of one group: what its operations share, and their memory.
struct ShmGroup {
  template <class... Arguments>
  explicit ShmGroup(Arguments&&... arguments) : pipeline(std::forward<Arguments>(arguments)...) {}

  ShmPipeline pipeline;
  SpareBlocks operations;
  ShmDone done{pipeline.board()};
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
    const bool hope = group_.pipeline.advance(round_);
    moved_ = group_.pipeline.phases_done() != before || group_.pipeline.spent();
    if (!job_.complete && !hope)
      throw Error(ErrorCode::aborted, "a rank of the group left before the operation was complete");
    return job_.complete;
  }
  bool needs_polling() const override { return false; }
  bool moved() const override { return moved_; }
  const char* method() const override { return text_of(job_.choice, !job_.settled); }

 private:
  ShmGroup& group_;
  ShmJob job_;
  std::uint64_t round_ = 0;
  bool moved_ = false;  // at the last step
};

/// Whether results depend on one element of each rank only.
constexpr bool combines_elements(ReduceOp op) {
  return op <= ReduceOp::logical_or;
}

class ShmBackend final : public Backend {
 public:
  /// `tuning`: of its memory at first.
  ShmBackend(const ShmWorld& world, const GroupInfo& group, const ShmTuning& tuning)
      : world_(world), info_(group), tuning_(tuning) {}

  ~ShmBackend() override {
    if (info_.is_world()) world_.memory->give_back_adopted();
  }
  ShmBackend(const ShmBackend&) = delete;
  ShmBackend& operator=(const ShmBackend&) = delete;

  std::string_view name() const override { return "shm"; }
  bool compares_tokens() const override { return true; }
  bool supports(const Signature& signature) const override {
    if (signature.device != DeviceKind::cpu || !shm_method(signature.kind, false)) return false;
    return !reduces(signature.kind) || (combines_elements(signature.op) && reducible(signature));
  }
  std::unique_ptr<Operation> start(const Bucket& bucket) override {
    if (group_->pipeline.complete_at_once(bucket)) return std::unique_ptr<Operation>(&group_->done);
    return std::unique_ptr<Operation>(new (*group_) ShmOperation(*group_, bucket));
  }
  std::unique_ptr<Backend> for_group(const GroupInfo& group) override {
    if (group.is_pair()) return nullptr;
    GroupInfo members = group;
    for (int& rank : members.ranks) rank = world_rank(static_cast<std::size_t>(rank));
    return std::make_unique<ShmBackend>(world_, members, small_tuning(world_.tuning, group.size()));
  }
  std::shared_ptr<MemorySource> memory() override { return world_.memory; }
  void abandon() noexcept override {
    if (group_) group_->pipeline.abandon();
  }
  std::string findings() const override {
    if (!group_) return "";
    auto tables = world_.known ? world_.known->tables : std::map<int, ShmTable>();
    for (const auto& [key, choice] : group_->pipeline.chooser().findings()) tables[info_.size()][key] = choice;
    return text_of_tables(tables, machine_name());
  }

  Introduction introduction() override;
  bool introduce(std::span<const Introduction> members) override;

 private:
  int world_rank(std::size_t member) const { return info_.ranks[member]; }

  ShmWorld world_;
  GroupInfo info_;
  ShmTuning tuning_;
  std::shared_ptr<std::byte> part_;  // of the board, until the other parts are known
  std::string why_none_;
  std::optional<ShmGroup> group_;
};

/// Where this rank's part of the board lies; empty if it has none.
Introduction ShmBackend::introduction() {
  const std::size_t bytes = ShmBoard::bytes(info_.size(), tuning_);
  try {
    part_ = world_.memory->reserve_part(bytes);
  } catch (const Error& error) {
    why_none_ = error.what();
    return {};
  }
  const PeerAddress at = world_.memory->find(part_.get(), bytes);
  return {static_cast<std::int64_t>(at.piece), static_cast<std::int64_t>(at.offset),
          static_cast<std::int64_t>(at.piece_bytes), at.descriptor, static_cast<std::int64_t>(at.file)};
}

bool ShmBackend::introduce(std::span<const Introduction> members) {
  const auto rank = static_cast<std::size_t>(info_.rank);
  const auto without = std::ranges::find_if(members, &Introduction::empty);
  if (without != members.end()) {
    if (without == members.begin() + info_.rank && world_.report) {
      world_.report(
          fmt::format("no shared memory for group {}: {}; its tensors travel over MPI", info_.name, why_none_));
    }
    return false;
  }
  const std::size_t bytes = ShmBoard::bytes(info_.size(), tuning_);
  std::vector<std::shared_ptr<std::byte>> parts(members.size());
  std::vector<Doorbell*> doorbells;
  for (std::size_t member = 0; member < members.size(); ++member) {
    if (member == rank) continue;
    const Introduction& said = members[member];
    if (said.size() != 5 || said[1] < 0 || said[2] - said[1] < static_cast<std::int64_t>(bytes))
      throw Error(ErrorCode::backend, "malformed introduction (of a rank's shared memory)");
    parts[member] = world_.memory->map(
        world_rank(member),
        {static_cast<std::uint64_t>(said[0]), static_cast<std::uint64_t>(said[1]), static_cast<std::uint64_t>(said[2]),
         static_cast<std::int32_t>(said[3]), static_cast<std::uint32_t>(said[4])});
    if (!world_.doorbells.empty()) doorbells.push_back(&world_.doorbells[static_cast<std::size_t>(world_rank(member))]);
  }
  parts[rank] = std::move(part_);
  group_.emplace(ShmBoard(std::move(parts), info_.rank, tuning_, std::move(doorbells)), world_.memory, info_.ranks,
                 world_.tuning, ShmChooser(world_.tuning.chunk, info_.size(), world_.known),
                 [report = world_.report, name = info_.name](const std::string& why) {
                   if (report) report(fmt::format("no more shared memory for group {}: {}", name, why));
                 });
  return true;
}

}  // namespace

std::unique_ptr<Backend> shm_backend(const ShmWorld& world, const GroupInfo& group) {
  return std::make_unique<ShmBackend>(world, group, world.tuning);
}

}  // namespace kolo
