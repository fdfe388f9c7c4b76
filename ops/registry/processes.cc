#include "ops/registry/processes.h"

#include <fmt/format.h>

#include <memory>
#include <numeric>
#include <optional>
#include <utility>

#include <kolo/error.h>

#include "ops/local/backend.h"
#include "ops/registry/registry.h"
#include "ops/shm/pairs.h"
#include "ops/shm/processes.h"
#include "ops/two_level/domains.h"
#include "ops/two_level/node_placement.h"

namespace kolo {
namespace {

/// Some ranks of a gathering, this one among them. The others call what is collective as often, in parts of their own.
class PartOfRanks final : public Gathering {
 public:
  PartOfRanks(Gathering& all, std::vector<int> ranks) : all_(all), ranks_(std::move(ranks)) {}
  int rank() const override { return static_cast<int>(std::ranges::find(ranks_, all_.rank()) - ranks_.begin()); }
  int size() const override { return static_cast<int>(ranks_.size()); }
  std::vector<std::vector<std::byte>> all(std::span<const std::byte> mine) override {
    auto of_all = all_.all(mine);
    std::vector<std::vector<std::byte>> result;
    for (const int rank : ranks_) result.push_back(std::move(of_all[static_cast<std::size_t>(rank)]));
    return result;
  }
  int lowest_on_node() override {
    const int lowest = all_.lowest_on_node();
    return static_cast<int>(std::ranges::lower_bound(ranks_, lowest) - ranks_.begin());
  }

 private:
  Gathering& all_;
  const std::vector<int> ranks_;  // ascending
};

/// Serves what stays within this rank's node by the backends of that node, and says of the rest that it needs MPI.
class WithinNode final : public Backend {
 public:
  /// `here`: of this node's ranks, `node`. `members`: of the group, ranks of the world; `node_of`: by rank of the
  /// world.
  WithinNode(std::shared_ptr<BackendList> here, std::vector<int> node, std::vector<int> members,
             std::vector<int> node_of)
      : here_(std::move(here)), node_(std::move(node)), members_(std::move(members)), node_of_(std::move(node_of)) {}

  std::string_view name() const override { return "node"; }
  bool supports(const Signature&) const override { return false; }
  std::string refusal(const Signature& signature) const override {
    if (signature.device != DeviceKind::cpu) return "";
    const auto other = first_elsewhere(members_);
    if (!other)
      return "the ranks of a node cannot share memory, and a world made from a store has no MPI; start the program "
             "with "
             "mpirun";
    return fmt::format(
        "ranks {} and {} are on different nodes, between which tensors in host memory travel over MPI, and "
        "a world made from a store has none; start the program with mpirun, or use tensors on GPUs",
        members_.front(), *other);
  }
  std::unique_ptr<Operation> start(const Bucket& bucket) override {
    throw Error(ErrorCode::backend, refusal(bucket.signature));
  }
  std::unique_ptr<Backend> for_group(const GroupInfo& group) override {
    if (!first_elsewhere(group.ranks)) {
      GroupInfo members = group;
      for (int& rank : members.ranks) rank = static_cast<int>(std::ranges::find(node_, rank) - node_.begin());
      for (const auto& backend : *here_) {
        if (auto made = backend->for_group(members)) return made;
      }
    }
    return std::make_unique<WithinNode>(std::make_shared<BackendList>(), std::vector<int>(), group.ranks, node_of_);
  }
  std::unique_ptr<ByteLane> lane(int peer) override {
    const auto place = std::ranges::find(node_, peer);
    for (const auto& backend : *here_) {
      if (place == node_.end()) break;
      if (auto lane = backend->lane(static_cast<int>(place - node_.begin()))) return lane;
    }
    return nullptr;
  }
  std::shared_ptr<MemorySource> memory() override { return here_->empty() ? nullptr : here_->front()->memory(); }
  void abandon() noexcept override {
    for (const auto& backend : *here_) backend->abandon();
  }

 private:
  /// One of these that is on another node than the first.
  std::optional<int> first_elsewhere(const std::vector<int>& ranks) const {
    for (const int rank : ranks) {
      if (node_of_[static_cast<std::size_t>(rank)] != node_of_[static_cast<std::size_t>(ranks.front())]) return rank;
    }
    return std::nullopt;
  }

  const std::shared_ptr<BackendList> here_;
  const std::vector<int> node_, members_, node_of_;
};

/// Of the ranks of one node, shared memory: for operations, and for what one sends another. Empty if it cannot be had.
BackendList shared_memory(Gathering& here, const ProcessRanks& ranks) {
  BackendList list;
  auto shared = node_memory_backend(here, ranks);
  auto pairs = shm_pairs_backend(here, {}, ranks.doorbells, shared ? shared->memory() : nullptr, ranks.known);
  if (!shared || !pairs) return list;
  list.push_back(std::move(shared));
  list.push_back(std::move(pairs));
  return list;
}

BackendList within_nodes(const ProcessRanks& ranks) {
  std::vector<int> all(ranks.node_of.size());
  std::iota(all.begin(), all.end(), 0);
  std::vector<int> mine = ranks.of_node(all);
  PartOfRanks node(ranks.gathering, mine);
  auto here = std::make_shared<BackendList>(shared_memory(node, ranks));
  BackendList list;
  list.push_back(std::make_unique<WithinNode>(std::move(here), std::move(mine), std::move(all), ranks.node_of));
  return list;
}

BackendList shared_backends(std::string_view setting, const ProcessRanks& ranks) {
  if (setting == "auto" && !ranks.one_node()) return within_nodes(ranks);
  const bool alone = ranks.node_of.size() == 1;
  BackendList shared;
  if (ranks.one_node() && (setting == "shm" || (setting == "auto" && !alone)))
    shared = shared_memory(ranks.gathering, ranks);
  if (setting == "auto" && !alone && shared.empty()) return within_nodes(ranks);
  std::vector<BackendOffer> offers;
  if (alone) offers.push_back({"local", [] { return std::move(local_backends(1, {}).front()); }});
  if (ranks.one_node())
    offers.push_back({"shm", [&] { return shared.empty() ? nullptr : std::move(shared.front()); }, alone});
  BackendList backends = make_backends(setting, offers);
  if (!shared.empty()) backends.push_back(std::move(shared.back()));
  return backends;
}

}  // namespace

std::unique_ptr<Backend> node_memory_backend(Gathering& here, const ProcessRanks& ranks) {
  auto flat = shm_process_backend(here, ranks.doorbells, ranks.report, ranks.known, nullptr, ranks.xpmem);
  auto domain_of = ranks.of_node(ranks.domain_of);
  if (!flat || !spans_shared_nodes(domain_of)) return flat;
  auto backend = domains_backend(std::move(flat), std::move(domain_of), here.rank());
  return introduce_all(here, *backend, ranks.report) ? std::move(backend) : nullptr;
}

ProcessBackends backends_without_mpi(std::function<std::unique_ptr<Backend>()> agreements) {
  const auto gpu_hosts = [agreements = std::move(agreements)](const ProcessRanks& ranks) {
    return GpuHosts{[&ranks] { return shared_backends("auto", ranks); },
                    [&ranks, agreements] {
                      auto shared = ranks.one_node() ? shared_backends("auto", ranks) : BackendList();
                      return shared.size() > 1 ? std::move(shared.front()) : agreements();
                    }};
  };
  return {shared_backends, gpu_hosts};
}

}  // namespace kolo
