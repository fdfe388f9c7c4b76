#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ops/nccl/table.h"

namespace kolo::testing {

/// NCCL made of host memory, in a program that links fake_nccl.cc in place of no_nccl.cc: performs the collectives
/// of ranks that are threads, on the streams of their fake GPUs, when all ranks' streams have come to them. Adds
/// in the order of the ranks and rounds 16-bit floats at each addition. Complains, as failures of the test, about calls
/// that NCCL forbids: ranks that differ, calls on a communicator that is busy, the wrong current GPU.
struct FakeNccl {
  /// How often out of 256 a call answers in_progress, and goes on the stream only after it was asked for its state some
  /// times.
  int in_progress = 0;
  std::uint64_t seed = 1;
  int version = 22809;
  bool available = true;
  bool loud = false;  ///< says on stderr that a communicator is aborted
};

/// Thread blocks of NCCL's kernels that fit on a fake GPU at the same time: one for each multiprocessor. A kernel has
/// as many as its communicator may use, and waits until there is room for all.
inline constexpr int fake_multiprocessors = 40, default_ctas = 32;

/// What all calls from now on do. Not while calls are made.
void set_fake_nccl(const FakeNccl& settings);

/// What rank `rank` of any communicator called since the last clear, in order: "init 2", "group 3", "all_reduce 100 f32
/// op 4", "send 64 u8 to 1", "abort", …
std::vector<std::string> nccl_log(int rank);
void clear_nccl_log();

/// What was launched on a GPU since the last clear, in order.
struct NcclLaunch {
  bool urgent = false;    ///< its stream has the highest priority
  std::size_t count = 0;  ///< of its first call
};
std::vector<NcclLaunch> nccl_launches(int gpu);

/// From now on asking communicators of this rank for their state answers with an error once, after `calls` more groups
/// were launched (below 0: at once).
void fail_nccl(int rank, NcclResult error, int after_groups = 0);
/// The same for a failure at run time: once, after a communicator has answered that its launches are on the stream.
void fail_nccl_while_running(int rank, NcclResult error);
/// A collective's call on this rank fails, after `calls` more: it is not part of its group, and neither are the others.
void fail_nccl_call(int rank, NcclResult error, int calls = 0);
/// From now on the work of this rank never completes, like that of a rank whose peer is dead; until its communicator is
/// aborted.
void hang_nccl(int rank, bool hangs);
/// From now on communicators that were finalized do not come to rest, as if peers had not ended theirs.
void hold_nccl_ends(bool hold);
/// From now on a collective's call on this rank does not return.
void block_nccl(int rank);

}  // namespace kolo::testing
