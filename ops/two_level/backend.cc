#include "ops/two_level/backend.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include <kolo/error.h>

#include "ops/introductions.h"
#include "ops/two_level/operation.h"

namespace kolo {
namespace {

/// Some members of a group, this rank among them, as a group of their own.
GroupInfo part_of(const GroupInfo& group, const std::vector<int>& members) {
  GroupInfo part{group.id, group.name, {}, static_cast<int>(std::ranges::find(members, group.rank) - members.begin())};
  for (int member : members) part.ranks.push_back(group.ranks[static_cast<std::size_t>(member)]);
  return part;
}

/// What the backends of one rank, for the world and for groups, have in common.
struct TwoLevelWorld {
  std::shared_ptr<Backend> all_ranks;
  ChunkRule stripe;
  bool introduced = false;  // what `all_ranks` makes has to be, and serves both levels as well as any other
  std::shared_ptr<BufferPool> staging = std::make_shared<BufferPool>(TwoLevels::most_in_flight);
};

class TwoLevelBackend final : public Backend {
 public:
  /// `group`: ranks of `world.all_ranks`; `node_of`: by rank of the group. `intra_node`: the first that serves this
  /// node's members is used; if there is none, `all_ranks` serves them.
  TwoLevelBackend(TwoLevelWorld world, std::unique_ptr<Backend> intra_node, std::vector<int> node_of, GroupInfo group)
      : world_(std::move(world)),
        node_of_(std::move(node_of)),
        group_(std::move(group)),
        levels_(std::make_shared<TwoLevels>()) {
    levels_->placement = placement_of(node_of_, group_.rank);
    const NodePlacement& placement = levels_->placement;
    levels_->rule = {world_.stripe.largest * placement.stripes(), world_.stripe.direct};
    levels_->staging = world_.staging;
    // The members of a node and the holders of a stripe have this rank alone in common.
    if (intra_node) here_.push_back(std::move(intra_node));
    const bool is_spare = group_.is_world() && !here_.empty();
    if (placement.mine().size() > 1 && !is_spare)
      here_.push_back(world_.all_ranks->for_group(part_of(group_, placement.mine())));
    if (placement.holds_stripe()) holders_.push_back(world_.all_ranks->for_group(part_of(group_, holders_of_stripe())));
    if (group_.is_world()) world_.staging->reserve(TwoLevels::ahead + 1, levels_->staging_bytes());
  }

  std::string_view name() const override { return "nodes"; }
  bool supports(const Signature& signature) const override {
    if (signature.device != DeviceKind::cpu || !two_level_method(signature.kind)) return false;
    const NodePlacement& placement = levels_->placement;
    const std::size_t ranks = placement.places.size();
    if (signature.kind == OpKind::all_to_all && placement.cells() != ranks) return false;
    // Most would be padding; but within a node nothing else adds in this order.
    if (has_blocks(signature.kind) && placement.cells() > 2 * ranks && !world_.introduced) return false;
    return !reduces(signature.kind) || (reducible(signature) && carried_type(signature));
  }
  std::unique_ptr<Operation> start(const Bucket& bucket) override {
    return std::make_unique<TwoLevelOperation>(levels_, bucket);
  }
  std::unique_ptr<Backend> for_group(const GroupInfo& group) override {
    if (group.is_pair()) return nullptr;
    std::vector<int> node_of;
    for (int rank : group.ranks) node_of.push_back(node_of_[static_cast<std::size_t>(rank)]);
    const NodePlacement placement = placement_of(node_of, group.rank);
    if (placement.ranks.size() == 1) return intra_node_for(group, placement);
    if (!spans_shared_nodes(node_of)) return nullptr;
    GroupInfo members = group;
    for (int& rank : members.ranks) rank = group_.ranks[static_cast<std::size_t>(rank)];
    auto intra_node = world_.introduced ? nullptr : intra_node_for(group, placement);
    return std::make_unique<TwoLevelBackend>(world_, std::move(intra_node), std::move(node_of), std::move(members));
  }
  /// What the members of this node, and the holders of this rank's stripe, must know.
  Introduction introduction() override {
    const Introduction of_node = introduction_of(here_), of_holders = introduction_of(holders_);
    Introduction said{static_cast<std::int64_t>(of_node.size())};
    said.insert(said.end(), of_node.begin(), of_node.end());
    said.insert(said.end(), of_holders.begin(), of_holders.end());
    return said;
  }
  bool introduce(std::span<const Introduction> members) override {
    std::vector<Introduction> of_node, of_holders;
    for (int rank : levels_->placement.mine()) of_node.push_back(halves(members[static_cast<std::size_t>(rank)]).first);
    if (levels_->placement.holds_stripe()) {
      for (int rank : holders_of_stripe()) of_holders.push_back(halves(members[static_cast<std::size_t>(rank)]).second);
    }
    kolo::introduce(here_, of_node);
    kolo::introduce(holders_, of_holders);
    take_levels();
    return true;
  }
  /// What has been introduced serves from now on.
  void take_levels() {
    if (!here_.empty()) levels_->intra_node = std::move(here_.front());
    if (!holders_.empty()) levels_->inter_node = std::move(holders_.front());
    here_.clear();
    holders_.clear();
    const NodePlacement& placement = levels_->placement;
    const bool lacks_intra = placement.size() > 1 && !levels_->intra_node;
    if (lacks_intra || (placement.holds_stripe() && !levels_->inter_node))
      throw Error(ErrorCode::backend, fmt::format("no memory that ranks share for group {}", group_.name));
  }
  void abandon() noexcept override {
    if (group_.is_world()) world_.all_ranks->abandon();
    if (levels_->intra_node) levels_->intra_node->abandon();
    if (levels_->inter_node) levels_->inter_node->abandon();
  }
  bool must_be_called() const override {
    return (levels_->intra_node && levels_->intra_node->must_be_called()) ||
           (levels_->inter_node && levels_->inter_node->must_be_called());
  }
  std::shared_ptr<MemorySource> memory() override {
    return levels_->intra_node ? levels_->intra_node->memory() : nullptr;
  }
  std::string findings() const override {
    return (levels_->intra_node ? levels_->intra_node->findings() : "") +
           (levels_->inter_node ? levels_->inter_node->findings() : "");
  }
  std::uint64_t staged_bytes() const override {
    std::uint64_t sum = levels_->staged_bytes;
    if (levels_->intra_node) sum += levels_->intra_node->staged_bytes();
    if (levels_->inter_node) sum += levels_->inter_node->staged_bytes();
    return sum;
  }

 private:
  /// Ranks of the group.
  std::vector<int> holders_of_stripe() const {
    std::vector<int> holders;
    for (const auto& ranks : levels_->placement.ranks)
      holders.push_back(ranks[static_cast<std::size_t>(levels_->placement.index)]);
    return holders;
  }

  static std::pair<Introduction, Introduction> halves(const Introduction& said) {
    if (said.empty() || said[0] < 0 || static_cast<std::size_t>(said[0]) >= said.size())
      throw Error(ErrorCode::backend, "malformed introduction (of a rank's two levels)");
    const auto middle = said.begin() + 1 + said[0];
    return {{said.begin() + 1, middle}, {middle, said.end()}};
  }

  /// What this node's backend has for the members of a group that are here. May be null.
  std::unique_ptr<Backend> intra_node_for(const GroupInfo& group, const NodePlacement& placement) {
    if (!levels_->intra_node) return nullptr;
    GroupInfo members = part_of(group, placement.mine());
    const auto& here = levels_->placement.mine();
    for (int& rank : members.ranks) rank = static_cast<int>(std::ranges::find(here, rank) - here.begin());
    return levels_->intra_node->for_group(members);
  }

  TwoLevelWorld world_;
  std::vector<int> node_of_;
  GroupInfo group_;
  std::shared_ptr<TwoLevels> levels_;
  BackendList here_, holders_;  // until they are introduced
};

}  // namespace

std::unique_ptr<Backend> two_level_backend(std::unique_ptr<Backend> all_ranks, std::unique_ptr<Backend> intra_node,
                                           std::vector<int> node_of, int rank, const ChunkRule& stripe,
                                           bool introduced) {
  GroupInfo world{0, "world", std::vector<int>(node_of.size()), rank};
  std::iota(world.ranks.begin(), world.ranks.end(), 0);
  auto backend = std::make_unique<TwoLevelBackend>(TwoLevelWorld{std::move(all_ranks), stripe, introduced},
                                                   std::move(intra_node), std::move(node_of), std::move(world));
  if (!introduced) backend->take_levels();
  return backend;
}

}  // namespace kolo
