#include "ops/two_level/gpu_nodes_backend.h"

#include <algorithm>
#include <utility>

#include "ops/nccl/backend.h"
#include "ops/two_level/gpu_nodes_all_reduce.h"

namespace kolo {
namespace {

enum class Level : GroupId { within = 0, between = 1 };

/// Some members of a group, as a group: its id is the same on all of them, and no other's that this rank is in.
GroupInfo part_of(const GroupInfo& group, const std::vector<int>& members, Level level) {
  GroupInfo part{.name = group.name + (level == Level::within ? ", within a node" : ", between nodes"), .rank = -1};
  for (int member : members) {
    if (member == group.rank) part.rank = part.size();
    part.ranks.push_back(group.ranks[static_cast<std::size_t>(member)]);
  }
  constexpr GroupId mark = GroupId{1} << 30, groups = GroupId{1} << 13;
  part.id = mark | (group.id % groups) << 17 | static_cast<GroupId>(level) << 16 |
            (static_cast<GroupId>(part.ranks.front()) & 0xffffu);
  return part;
}

class GpuNodesBackend final : public Backend {
 public:
  GpuNodesBackend(std::shared_ptr<GpuNodes> nodes, const GroupInfo& group, NodePlacement placement)
      : nodes_(std::move(nodes)) {
    NcclRank& rank = *nodes_->rank;
    const std::int64_t largest = std::max<std::int64_t>(rank.tuning.staging_bytes / 8 / 64 * 64, 4096);
    levels_ = std::make_shared<GpuLevels>(rank.gpu, std::move(placement),
                                          SegmentRule{largest, std::min(rank.tuning.direct_bytes, largest)},
                                          rank.tuning.timed);
    const NodePlacement& where = levels_->placement;
    if (where.mine().size() > 1) {
      const GroupInfo node = part_of(group, where.mine(), Level::within);
      levels_->within = nccl_backend(nodes_->rank, node, nodes_->agreements->for_group(node));
    }
    if (!where.holds_stripe()) return;
    std::vector<int> holders;
    for (const auto& members : where.ranks) holders.push_back(members[static_cast<std::size_t>(where.index)]);
    levels_->between = between(part_of(group, holders, Level::between));
  }

  std::string_view name() const override { return "nccl by nodes"; }
  bool supports(const Signature& signature) const override { return goes_by_nodes(signature); }
  std::unique_ptr<Operation> start(const Bucket& bucket) override {
    return std::make_unique<GpuNodesAllReduce>(levels_, bucket);
  }
  std::unique_ptr<Backend> for_group(const GroupInfo& group) override { return gpu_nodes_backend(nodes_, group); }
  std::uint64_t staged_bytes() const override { return levels_->between ? levels_->between->staged_bytes() : 0; }
  void abort_device_work() noexcept override {
    for (Backend* level : {levels_->within.get(), levels_->between.get()}) {
      if (level) level->abort_device_work();
    }
  }
  void abandon() noexcept override {
    for (Backend* level : {levels_->within.get(), levels_->between.get()}) {
      if (level) level->abandon();
    }
  }

 private:
  std::unique_ptr<Backend> between(const GroupInfo& holders) {
    if (nodes_->staging.empty()) return nccl_backend(nodes_->rank, holders, nodes_->agreements->for_group(holders));
    BackendList hosts;
    for (const auto& host : nodes_->staging) {
      if (auto mine = host->for_group(holders)) hosts.push_back(std::move(mine));
    }
    return staged_backend(nodes_->rank->gpu, std::move(hosts), holders, nodes_->staged);
  }

  std::shared_ptr<GpuNodes> nodes_;
  std::shared_ptr<GpuLevels> levels_;
};

}  // namespace

std::unique_ptr<Backend> gpu_nodes_backend(std::shared_ptr<GpuNodes> nodes, const GroupInfo& group) {
  std::vector<int> node_of;
  for (int rank : group.ranks) node_of.push_back(nodes->node_of[static_cast<std::size_t>(rank)]);
  if (!spans_shared_nodes(node_of)) return nullptr;
  return std::make_unique<GpuNodesBackend>(std::move(nodes), group, placement_of(node_of, group.rank));
}

}  // namespace kolo
