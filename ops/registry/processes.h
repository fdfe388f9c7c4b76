#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <kolo/backend.h>

#include "ops/host/doorbell.h"
#include "ops/host/gathering.h"
#include "ops/host/xpmem.h"
#include "ops/registry/gpu.h"
#include "ops/shm/chooser.h"

namespace kolo {

/// The ranks of a world of processes.
struct ProcessRanks {
  Gathering& gathering;                            ///< they agree through it when backends are made
  std::vector<int> node_of;                        ///< by rank
  std::span<Doorbell> doorbells;                   ///< of this node's ranks; they outlive the backends
  std::function<void(const std::string&)> report;  ///< receives one line, on one rank, if memory cannot be shared
  std::shared_ptr<const ShmKnown> known{};         ///< of how tensors travel best within a node; null: nothing
  std::vector<int> domain_of{};  ///< by rank; ranks on cores that share a cache have one number. Empty: those of a node
  std::shared_ptr<const Xpmem> xpmem{};  ///< null: this rank has none

  int node() const { return node_of[static_cast<std::size_t>(gathering.rank())]; }
  /// What `by_rank` has for the ranks of this one's node.
  std::vector<int> of_node(const std::vector<int>& by_rank) const {
    std::vector<int> mine;
    for (std::size_t rank = 0; rank < by_rank.size(); ++rank) {
      if (node_of[rank] == node()) mine.push_back(by_rank[rank]);
    }
    return mine;
  }
  bool one_node() const {
    return std::ranges::all_of(node_of, [](int node) { return node == 0; });
  }
};

/// What the settings KOLO_SHM_METHOD and KOLO_TUNING say, as the first rank of each node has them, which reports why a
/// file is not used. Collective.
std::shared_ptr<const ShmKnown> known_of_settings(const Config& config, Gathering& ranks);

/// By rank: a number for each node, and on nodes where every rank is bound to cores that share one of several caches
/// (or memories) for each of these; or as KOLO_FAKE_DOMAINS says. Collective.
std::vector<int> domains_of(const Config& config, const std::vector<int>& node_of, Gathering& ranks);

/// What serves the ranks of a node that share memory, `here`, which are `ranks.node()`'s: in two levels where they have
/// several caches. Null, on all of them, if they cannot share memory, of which one rank's report() says why. Collective
/// over `here`.
std::unique_ptr<Backend> node_memory_backend(Gathering& here, const ProcessRanks& ranks);

/// Makes the backends of a world of processes. Both are collective.
struct ProcessBackends {
  /// Of host tensors. Throws as make_backends() does.
  std::function<BackendList(std::string_view setting, const ProcessRanks& ranks)> host;
  /// The host backends of GPU tensors; `ranks` must outlive the result.
  std::function<GpuHosts(const ProcessRanks& ranks)> for_gpus;
};

/// Of a world without MPI: shared memory serves the ranks of a node; host tensors between nodes are errors that say to
/// use mpirun. `agreements` makes what carries the small agreements of GPU backends (see GpuHosts) between nodes.
ProcessBackends backends_without_mpi(std::function<std::unique_ptr<Backend>()> agreements);

}  // namespace kolo
