#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <kolo/config.h>

#include "ops/gpu/gpu.h"
#include "ops/nccl/rank.h"
#include "runtime/control/wire.h"

namespace kolo {

/// What one rank has of GPUs.
struct GpuIdentity {
  std::string host;
  std::string nccl_host;  ///< NCCL refuses two ranks with one of these and one GPU; NCCL_HOSTID, if set
  int gpu = -1;           ///< index on its host; -1: none
  GpuFacts facts{};
  int nccl_version = 0;     ///< 0: none
  std::string why_no_nccl;  ///< one line
};

void put(Writer& writer, const GpuIdentity& place);
GpuIdentity get_gpu_place(Reader& reader);

/// A rank's GPU: GPUs are dealt out by the rank's index on its node, round and round.
struct GpuShare {
  GpuIdentity place;
  std::shared_ptr<NcclRank> nccl;  ///< null if place.nccl_version is 0
};

/// Looks for this rank's GPU and NCCL, and reserves what NCCL needs.
GpuShare find_gpu(const Config& config, const std::string& host, int local_rank);

/// What all ranks conclude from the places of all.
struct GpuChoice {
  bool usable = false;  ///< every rank has a GPU
  bool nccl = false;    ///< NCCL can serve all
  std::string note;     ///< one line for a person, if something is not as it could be
};
/// Throws Error{invalid_argument}, on every rank, if KOLO_GPU_BACKEND asks for what cannot be had.
GpuChoice choose_gpu_backends(const Config& config, std::span<const GpuIdentity> places);

/// One line for each rank: rank, host, GPU, NUMA node.
std::vector<std::string> gpu_table(std::span<const GpuIdentity> places, const GpuChoice& choice);

/// How backends of host tensors that serve nothing else are made. Collective.
struct GpuHosts {
  std::function<BackendList()> staging;                ///< for data, the first that supports a bucket
  std::function<std::unique_ptr<Backend>()> agreeing;  ///< for small agreements
};

/// The backends of GPU tensors of the world `world`, of which this is rank `world.rank`; empty if GPUs cannot be used.
/// Collective.
BackendList gpu_backends(const Config& config, const GpuShare& mine, std::span<const GpuIdentity> places,
                         const GroupInfo& world, const GpuHosts& hosts);

}  // namespace kolo
