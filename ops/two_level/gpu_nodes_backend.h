#pragma once

#include <functional>
#include <memory>
#include <vector>

#include <kolo/backend.h>

#include "ops/nccl/rank.h"
#include "ops/staged/backend.h"

namespace kolo {

/// What all groups' levels are made from, on one rank.
struct GpuNodes {
  std::shared_ptr<NcclRank> rank;
  std::vector<int> node_of;             ///< of each rank of the session
  std::unique_ptr<Backend> agreements;  ///< of host tensors of all ranks, for NCCL's groups
  BackendList staging;                  ///< the same for data between nodes; empty: that goes by NCCL, too
  StagedTuning staged;
};

/// all_reduce of tensors on GPUs among ranks on several nodes, in two levels: NCCL within the nodes; between them, in
/// as many stripes as the smallest node has ranks, NCCL or (staged) the host's backends.
///
/// Serves what goes_by_nodes(). Sums come from the same additions in every run; of 16-bit floats they are rounded at
/// each. What fails is fatal for the group. Null if the group does not span several nodes of which one has several
/// ranks. Making and destroying it are collective. Throws Error{backend}.
std::unique_ptr<Backend> gpu_nodes_backend(std::shared_ptr<GpuNodes> nodes, const GroupInfo& group);

}  // namespace kolo
