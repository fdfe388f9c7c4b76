#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <kolo/backend.h>
#include <kolo/config.h>

#include "ops/gpu/gpu.h"
#include "ops/host/doorbell.h"

namespace kolo {

struct NcclRank;

/// One rank's GPU, host and NCCL, for the other ranks.
struct GpuIdentity {
  std::string host;
  std::string nccl_host;  ///< ranks with the same one and the same GPU share that; NCCL_HOSTID, else the boot id
  std::string nccl_algo;  ///< NCCL_ALGO, if set
  int gpu = -1;           ///< index on its host; -1: none
  GpuFacts facts{};
  int nccl_version = 0;     ///< 0: none
  std::string why_no_nccl;  ///< one line
};

/// A rank's GPU: GPU i modulo their number for the i-th rank of a node.
struct GpuShare {
  GpuIdentity identity;
  std::shared_ptr<NcclRank> nccl;  ///< null if identity.nccl_version is 0
};

/// Finds this rank's GPU and NCCL. Takes none of its memory.
GpuShare find_gpu(const Config& config, const std::string& host, int local_rank);

/// What all ranks conclude from all identities.
struct GpuChoice {
  bool usable = false;  ///< every rank has a GPU
  bool nccl = false;    ///< NCCL can serve all ranks
  std::string note;     ///< one line for the user where something is slower than need be, or cannot be used
};
/// Throws Error{invalid_argument}, on every rank, if KOLO_GPU_BACKEND asks for NCCL and it cannot serve these ranks, or
/// KOLO_NCCL_ALGO for an algorithm that NCCL_ALGO does not name.
GpuChoice choose_gpu_backends(const Config& config, std::span<const GpuIdentity> identities);

/// One line for each rank: rank, host, GPU, NUMA node.
std::vector<std::string> gpu_table(std::span<const GpuIdentity> identities, const GpuChoice& choice);

/// Makes the host backends that the GPU backends use, and nothing else does. Collective.
struct GpuHosts {
  std::function<BackendList()> staging;                ///< for data: the first that supports a bucket
  std::function<std::unique_ptr<Backend>()> agreeing;  ///< for small agreements
};

/// The backends of GPU tensors of rank `world.rank`; empty if GPUs cannot be used. Collective.
BackendList gpu_backends(const Config& config, const GpuShare& mine, std::span<const GpuIdentity> identities,
                         const GroupInfo& world, const GpuHosts& hosts);

/// The same for ranks that are threads of this process, with one share each: element r belongs to rank r.
std::vector<BackendList> thread_gpu_backends(const Config& config, std::span<const GpuShare> shares,
                                             std::span<Doorbell> doorbells);

}  // namespace kolo
