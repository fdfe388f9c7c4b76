#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>

#include "bench/kolo_bench/measure/candidate.h"
#include "ops/gpu/gpu.h"
#include "ops/nccl/table.h"

namespace kolo::bench {

/// ncclCommInitRank(), of which kolo's table has no need: it makes communicators that block, as nccl-tests' do.
using NcclInitRank = NcclResult (*)(NcclComm* comm, int ranks, NcclId id, int rank);
/// That of the library that nccl_table() has loaded; null if a stand-in for it is behind the table.
NcclInitRank nccl_init_rank();

/// NCCL without kolo: a blocking communicator over all ranks, and a stream. Used by the thread that made it, whose
/// current gpu is `gpu` as long as this lives.
class RawNccl final {
 public:
  /// Makes the communicator whose `id` get_unique_id() gave one of the ranks, with the table's init() if `init` is
  /// null. Collective. Throws Error{backend}.
  RawNccl(const NcclTable& table, Gpu& gpu, const NcclId& id, int rank, int ranks,
          NcclInitRank init = nccl_init_rank());
  /// Collective, unless an exception unwinds the stack.
  ~RawNccl();
  RawNccl(const RawNccl&) = delete;
  RawNccl& operator=(const RawNccl&) = delete;

  /// NCCL's own call for each lane, all in one group or each in its own; done when the stream has completed them.
  /// Lives no longer than this.
  std::unique_ptr<Asynchronous> candidate(const Work& work, std::string name = "nccl", bool one_group = true);

  /// Puts the work's calls on the stream. Throws Error{backend}.
  void launch(const Work& work, bool one_group = true);
  /// Waits until everything launched has run. Throws Error{backend}.
  void wait();

 private:
  void launch_group(const Work& work, std::span<const BucketTensor> lanes);
  void put(const Work& work, const BucketTensor& lane);
  void settle(const char* call);

  const NcclTable& table_;
  Gpu& gpu_;
  GpuGuard selected_;
  GpuStream stream_;
  int rank_;
  int ranks_;
  int exceptions_;
  NcclComm comm_ = nullptr;
};

/// The reason why NCCL has no comparable call for the work; nothing if it has one.
std::optional<std::string> no_nccl_call(const Work& work);

}  // namespace kolo::bench
