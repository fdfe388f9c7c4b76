#pragma once

#include <mpi.h>

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <kolo/backend.h>

#include "ops/host/doorbell.h"
#include "ops/host/gathering.h"
#include "ops/registry/gpu.h"

namespace kolo {

/// The ranks of a world of processes.
struct ProcessRanks {
  Gathering& gathering;                            ///< they agree through it when backends are made
  MPI_Comm comm;                                   ///< duplicated by each backend
  std::vector<int> node_of;                        ///< by rank
  std::span<Doorbell> doorbells;                   ///< of this node's ranks; they outlive the backends
  std::function<void(const std::string&)> report;  ///< receives one line, on one rank, if memory cannot be shared
};

/// The backends of host tensors. Collective. Throws as make_backends() does.
BackendList process_backends(std::string_view setting, const ProcessRanks& ranks);

/// What serves this node's ranks best: shared memory, or MPI where they cannot share it, of which one rank's report()
/// says why. Null if this rank is alone on its node. Collective over all ranks of `comm`.
std::unique_ptr<Backend> node_backend(const ProcessRanks& ranks);

/// Makes the host backends of GPU tensors; `ranks` must outlive the result.
GpuHosts process_gpu_hosts(const ProcessRanks& ranks);

}  // namespace kolo
