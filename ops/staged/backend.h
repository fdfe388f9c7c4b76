#pragma once

#include <cstdint>
#include <memory>

#include <kolo/backend.h>

#include "ops/gpu/gpu.h"

namespace kolo {

/// How device tensors pass through host memory; equal on all ranks.
struct StagedTuning {
  std::int64_t chunk_bytes = 4 << 20;  ///< of one chunk; a multiple of 64
  /// In flight, each with pinned memory of its own: one is copied from the GPU while others are reduced. The rank's
  /// groups share them; each that has something to do gets one at least.
  std::size_t chunks = 4;
};

/// Chunks that take at most `bytes` of pinned memory.
StagedTuning staged_within(std::int64_t bytes);

/// The backend of tensors on GPUs where NCCL cannot serve them: every chunk is copied to pinned memory, runs on the
/// first of `hosts` that supports it, and is copied back. The hosts serve the same ranks, and nothing else.
///
/// Serves on the device what the hosts serve on the host, with the same bits; adasum too, in host memory as large as
/// the bucket, which is not pinned. Groups and pairs get what the hosts have for them, and share this one's memory,
/// which is made on first use. Needs polling.
std::unique_ptr<Backend> staged_backend(Gpu& gpu, BackendList hosts, const GroupInfo& group,
                                        const StagedTuning& tuning);

}  // namespace kolo
