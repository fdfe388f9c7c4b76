#pragma once

#include <memory>

#include <kolo/device_backend.h>

#include "ops/nccl/rank.h"

namespace kolo {

/// The backend of tensors on GPUs: every rank of `world` has a GPU of its own, `rank->gpu` here.
///
/// host  serves the same ranks on the host and nothing else: it carries ids and agreements. Groups get theirs by its
/// for_group()
///
/// Serves every operation (a pair: send_recv), reductions where reducible(). What NCCL has no type or op for is
/// gathered and combined here. Tensors lie on the rank's GPU. Sums of floats may differ from the host's in rounding;
/// those of 16-bit floats round at every addition. Needs polling. Goes on after recover() where an operation's step()
/// threw Error. Making and destroying it are collective.
std::unique_ptr<DeviceBackend> nccl_backend(std::shared_ptr<NcclRank> rank, const GroupInfo& world,
                                            std::unique_ptr<Backend> host);

}  // namespace kolo
