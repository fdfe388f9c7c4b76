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

  int node() const { return node_of[static_cast<std::size_t>(gathering.rank())]; }
  bool one_node() const {
    return std::ranges::all_of(node_of, [](int node) { return node == 0; });
  }
};

/// What the settings KOLO_SHM_METHOD and KOLO_TUNING say, as the first rank of each node has them, which reports why a
/// file is not used. Collective.
std::shared_ptr<const ShmKnown> known_of_settings(const Config& config, Gathering& ranks);

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
