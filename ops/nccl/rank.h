#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <kolo/backend.h>
#include <kolo/error.h>

#include "ops/gpu/gpu.h"
#include "ops/gpu/launch_order.h"
#include "ops/gpu/packer.h"
#include "ops/nccl/plan.h"
#include "ops/nccl/table.h"

namespace kolo {

/// Sizes and choices; equal on all ranks.
struct NcclTuning {
  std::int64_t staging_bytes = 64 << 20;  ///< of the pack buffer; a multiple of 256
  std::int64_t direct_bytes = 2 << 20;    ///< tensors from this size on are not packed
  bool wide_halves = false;               ///< 16-bit floats travel as f32
  bool register_memory = false;           ///< with communicators: all ranks must place tensors at the same offsets
  bool timed = false;                     ///< measure how long buckets take on the GPU
  std::int64_t small_bytes = 256 << 10;   ///< buckets up to this size are urgent
};

/// Throws Error{backend} with NCCL's texts, the call's name and the caller's file and line unless `rc` is
/// success or in_progress. `comm` may be null.
void check_nccl(const NcclTable& table, NcclResult rc, NcclComm comm, const char* call, Where where = Where::here());

/// Memory of one GPU that NCCL allocates: session memory.
class NcclMemory final : public MemorySource, public std::enable_shared_from_this<NcclMemory> {
 public:
  NcclMemory(const NcclTable& table, Gpu& gpu) : table_(table), gpu_(gpu) {}

  std::shared_ptr<std::byte> allocate(std::size_t bytes, Device device) override;

  /// Not zeros; throws Error{backend} where allocate() answers null. Waits for nothing on the GPU.
  std::shared_ptr<std::byte> allocate_or_throw(std::size_t bytes);

  /// The piece that holds `data`, and its size; null if none does.
  std::pair<std::shared_ptr<std::byte>, std::size_t> piece_of(const void* data) const;

 private:
  const NcclTable& table_;
  Gpu& gpu_;
  mutable std::mutex mutex_;
  std::map<const std::byte*, std::pair<std::weak_ptr<std::byte>, std::size_t>> pieces_;
};

/// A communicator, and the session memory that is registered with it, which it keeps alive.
struct NcclMember {
  NcclComm comm = nullptr;  ///< NCCL writes it while it initialises: until then it must not move
  std::vector<void*> handles{};
  std::map<const std::byte*, std::shared_ptr<std::byte>> registered{};  ///< by where they begin
};

/// Communicators of groups that are gone, on their way to their ends: what is registered with one is deregistered, it
/// is finalized, and destroyed once NCCL says that all ranks have done so; aborted if that takes too long. Nothing
/// waits but finish().
class RetiredComms final {
 public:
  RetiredComms(const NcclTable& table, Gpu& gpu) : table_(table), gpu_(gpu) {}
  ~RetiredComms() { abort(); }
  RetiredComms(const RetiredComms&) = delete;
  RetiredComms& operator=(const RetiredComms&) = delete;

  void add(NcclMember&& member);
  /// A step of each.
  void advance() noexcept;
  /// The rank's last group ends: waits for the ends of all, or aborts them.
  void finish() noexcept;
  void abort() noexcept;

 private:
  struct Retired {
    NcclMember member;
    std::chrono::steady_clock::time_point deadline;
    bool finalized = false;
  };
  bool ends(Retired& one) const noexcept;

  const NcclTable& table_;
  Gpu& gpu_;
  std::vector<Retired> all_;
};

/// Where a rank's buckets run one after the other, beside those of the other lane: a stream, and memory to pack into,
/// which the stream's order protects.
struct NcclLane {
  NcclLane(Gpu& gpu, StreamPriority priority, int most_ctas)
      : stream(gpu, priority), packer(gpu, stream.get()), max_ctas(most_ctas) {}

  GpuStream stream;
  Packer packer;
  NcclStaging staging{};  ///< null until NcclRank::staging()
  int max_ctas;           ///< of NCCL's kernels: one of each lane fit on a GPU with 40 multiprocessors at the same time
};
inline constexpr std::size_t bulk_lane = 0, urgent_lane = 1, nccl_lanes = 2;

/// What one rank's groups share: the GPU, two lanes for all of NCCL's work, and the order of the launches in both.
struct NcclRank {
  /// Throws Error{backend} if the GPU fails.
  NcclRank(const NcclTable& nccl, Gpu& gpu, const NcclTuning& sizes)
      : table(nccl),
        gpu(gpu),
        tuning(sizes),
        memory(std::make_shared<NcclMemory>(nccl, gpu)),
        lanes{NcclLane(gpu, StreamPriority::high, 32), NcclLane(gpu, StreamPriority::highest, 8)} {}

  /// The lane of a bucket of a group of `ranks` ranks, the same on each: small ones, and those of a priority above 0,
  /// do not wait on the GPU for others.
  std::size_t lane_of(const Bucket& bucket, int ranks) const;

  /// The memory to pack into of both lanes, made when it is first asked for and kept. Throws Error{backend} if there is
  /// none.
  const std::shared_ptr<std::byte>& staging();
  std::int64_t urgent_staging_bytes() const { return std::min<std::int64_t>(tuning.staging_bytes, 4 << 20); }

  const NcclTable& table;
  Gpu& gpu;
  const NcclTuning tuning;
  std::shared_ptr<NcclMemory> memory;
  std::array<NcclLane, nccl_lanes> lanes;
  LaunchOrder order;
  RetiredComms retired{table, gpu};

 private:
  std::shared_ptr<std::byte> staging_;
};

}  // namespace kolo
