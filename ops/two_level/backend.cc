#include "ops/two_level/backend.h"

#include <algorithm>
#include <utility>

#include "ops/mpi/backend.h"
#include "ops/mpi_base/handles.h"
#include "ops/shm/processes.h"
#include "ops/two_level/all_reduce.h"

namespace kolo {
namespace {

MpiComm split(MPI_Comm comm, int color) {
  MPI_Comm part = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split(comm, color < 0 ? MPI_UNDEFINED : color, 0, &part), "MPI_Comm_split");
  return MpiComm(part);
}

class NodesBackend final : public Backend {
 public:
  /// Makes the backend of the ranks of this node: those of `node`, ranks of the group that this one's node has.
  using MakeWithin = std::function<std::unique_ptr<Backend>(MPI_Comm node, const NodePlacement& placement)>;

  NodesBackend(MPI_Comm comm, std::vector<int> node_of, const MakeWithin& make_within, const MpiTuning& tuning)
      : comm_(duplicate(comm)), node_of_(std::move(node_of)), tuning_(tuning), levels_(std::make_shared<NodeLevels>()) {
    int rank = 0;
    check_mpi(MPI_Comm_rank(comm_.get(), &rank), "MPI_Comm_rank");
    levels_->placement = placement_of(node_of_, rank);
    const NodePlacement& placement = levels_->placement;
    levels_->rule = {tuning.segments.largest * placement.stripes(), tuning.segments.direct};
    const MpiComm node = split(comm_.get(), placement.node);
    const MpiComm stripe = split(comm_.get(), placement.holds_stripe() ? placement.index : -1);
    if (placement.mine().size() > 1) levels_->within = make_within(node.get(), placement);
    if (placement.holds_stripe()) levels_->between = mpi_backend(stripe.get(), tuning_);
    const auto largest = static_cast<std::size_t>(std::max<std::int64_t>(levels_->rule.largest, 64));
    for (std::size_t i = 0; i < NodeLevels::most_under_way; ++i) levels_->staging.emplace_back(largest + largest / 2);
  }

  std::string_view name() const override { return "nodes"; }
  bool supports(const Signature& signature) const override {
    return signature.kind == OpKind::all_reduce && signature.device == DeviceKind::cpu && reducible(signature) &&
           carried_type(signature);
  }
  std::unique_ptr<Operation> start(const Bucket& bucket) override {
    return std::make_unique<NodesAllReduce>(levels_, bucket);
  }
  std::unique_ptr<Backend> for_group(const GroupInfo& group) override {
    if (group.pair) return nullptr;
    std::vector<int> node_of;
    for (int rank : group.ranks) node_of.push_back(node_of_[static_cast<std::size_t>(rank)]);
    if (std::ranges::count(node_of, node_of.front()) == group.size()) return within_for(group, group.ranks);
    if (!spans_shared_nodes(node_of)) return nullptr;
    const auto make_within = [&](MPI_Comm node, const NodePlacement& placement) {
      std::vector<int> ranks;
      for (int member : placement.mine()) ranks.push_back(group.ranks[static_cast<std::size_t>(member)]);
      auto within = within_for(group, ranks);
      return within ? std::move(within) : mpi_backend(node, tuning_);
    };
    return std::make_unique<NodesBackend>(communicator_of(comm_.get(), group).get(), std::move(node_of), make_within,
                                          tuning_);
  }
  void abandon() noexcept override {
    (void)comm_.release();
    if (levels_->within) levels_->within->abandon();
    if (levels_->between) levels_->between->abandon();
  }
  std::shared_ptr<MemorySource> memory() override { return levels_->within ? levels_->within->memory() : nullptr; }
  std::uint64_t staged_bytes() const override {
    std::uint64_t sum = levels_->staged_bytes;
    if (levels_->within) sum += levels_->within->staged_bytes();
    if (levels_->between) sum += levels_->between->staged_bytes();
    return sum;
  }

 private:
  /// What this node's backend has for those members of a group that are here: `ranks`, this one among them. May be
  /// null.
  std::unique_ptr<Backend> within_for(const GroupInfo& group, const std::vector<int>& ranks) {
    if (!levels_->within) return nullptr;
    const auto& here = levels_->placement.mine();
    const auto index_in = [](const std::vector<int>& list, int rank) {
      return static_cast<int>(std::ranges::find(list, rank) - list.begin());
    };
    GroupInfo members{group.id, group.name, {}, index_in(ranks, group.ranks[static_cast<std::size_t>(group.rank)])};
    for (int rank : ranks) members.ranks.push_back(index_in(here, rank));
    return levels_->within->for_group(members);
  }

  MpiComm comm_;
  std::vector<int> node_of_;
  MpiTuning tuning_;  // of what crosses the network
  std::shared_ptr<NodeLevels> levels_;
};

}  // namespace

std::unique_ptr<Backend> node_backend(MPI_Comm node, std::span<Doorbell> doorbells,
                                      const std::function<void(const std::string&)>& report) {
  auto shared = shm_process_backend(node, doorbells, report);
  return shared ? std::move(shared) : mpi_backend(node);
}

std::unique_ptr<Backend> nodes_backend(MPI_Comm comm, std::vector<int> node_of, NodeBackendMaker make_node,
                                       const MpiTuning& tuning) {
  const auto make_within = [&](MPI_Comm node, const NodePlacement&) { return make_node(node); };
  return std::make_unique<NodesBackend>(comm, std::move(node_of), make_within, tuning);
}

}  // namespace kolo
