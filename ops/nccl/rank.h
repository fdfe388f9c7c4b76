#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <kolo/backend.h>
#include <kolo/error.h>

#include "ops/gpu/gpu.h"
#include "ops/gpu/launch_order.h"
#include "ops/gpu/packer.h"
#include "ops/nccl/helper.h"
#include "ops/nccl/plan.h"
#include "ops/nccl/table.h"

namespace kolo {

/// Sizes and choices; equal on all ranks.
struct NcclTuning {
  std::int64_t staging_bytes = 64 << 20;  ///< of the pack buffer of the bulk lane
  std::int64_t direct_bytes = 2 << 20;    ///< tensors from this size on are not packed
  bool wide_halves = false;               ///< 16-bit floats travel as f32
  bool register_memory = false;           ///< with communicators; what ranks place differently is packed
  bool timed = false;                     ///< measure how long buckets take on the GPU
  std::int64_t small_bytes = 256 << 10;   ///< buckets up to this size are urgent
  bool blocking = false;                  ///< communicators, with threads of kolo's for calls that may wait
};

/// Throws Error{backend} with NCCL's texts, the call's name and the caller's file and line unless `rc` is
/// success or in_progress. `comm` may be null.
void check_nccl(const NcclTable& table, NcclResult rc, NcclComm comm, const char* call, Where where = Where::here());

/// Memory of one GPU that NCCL allocates: session memory. What nobody owns any more is unmapped later, by a thread that
/// waits for all that this process has put on the GPU before: NCCL's own release waits for nothing.
class NcclMemory final : public MemorySource, public std::enable_shared_from_this<NcclMemory> {
 public:
  NcclMemory(const NcclTable& table, Gpu& gpu) : table_(table), gpu_(gpu) {}
  /// Waits until all is unmapped.
  ~NcclMemory() override = default;
  NcclMemory(const NcclMemory&) = delete;
  NcclMemory& operator=(const NcclMemory&) = delete;

  std::shared_ptr<std::byte> allocate(std::size_t bytes, Device device) override;

  /// Not zeros; throws Error{backend} where allocate() answers null. Waits for the GPU only where memory is short, and
  /// some is still to be unmapped.
  std::shared_ptr<std::byte> allocate_or_throw(std::size_t bytes);

  /// The piece that holds `data`, and its size; null if none does.
  std::pair<std::shared_ptr<std::byte>, std::size_t> piece_of(const void* data) const;

 private:
  void release_later(std::byte* begin) noexcept;

  const NcclTable& table_;
  Gpu& gpu_;
  mutable std::mutex mutex_;
  std::map<const std::byte*, std::pair<std::weak_ptr<std::byte>, std::size_t>> pieces_;
  std::vector<std::future<void>> releases_;  // under way; they wait when they are destroyed
};

/// A communicator, and the session memory that is registered with it, which it keeps alive.
struct NcclMember {
  NcclComm comm = nullptr;  ///< NCCL writes it while it initialises: until then it must not move
  std::vector<void*> handles{};
  std::map<const std::byte*, std::shared_ptr<std::byte>> registered{};  ///< by where they begin
};

/// Communicators of groups that are gone, on their way to their ends: what is registered with one is deregistered, it
/// is finalized, and destroyed once NCCL says that all ranks have done so; aborted if that takes too long, or, if it
/// blocks, left to the thread that waits. Nothing waits but finish().
class RetiredComms final {
 public:
  RetiredComms(const NcclTable& table, Gpu& gpu, bool blocking) : table_(table), gpu_(gpu), blocking_(blocking) {}
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
    NcclHelper helper{};  // of one that blocks, from when it is finalized on
  };
  bool ends(Retired& one) const noexcept;
  bool ends_by_helper(Retired& one) const;

  const NcclTable& table_;
  Gpu& gpu_;
  bool blocking_;
  std::vector<Retired> all_;
};

/// Where a rank's buckets run one after the other, beside those of the other lane: NCCL's stream, and memory to pack
/// into. Where packing and unpacking have streams of their own, they run beside what NCCL does for other buckets, and
/// the memory has two parts that buckets take in turns.
struct NcclLane {
  StreamPriority priority;
  int max_ctas;  ///< of NCCL's kernels: one of each lane fit on a GPU with 40 multiprocessors at the same time
  bool overlaps;
  std::optional<GpuStream> made_stream{}, made_pack_stream{}, made_unpack_stream{};  ///< none until NcclRank::open()
  std::optional<Packer> packer{}, unpacker{};

  struct Part {
    NcclStaging staging{};                        ///< null until NcclRank::staging()
    std::shared_ptr<const DevicePoint> unused{};  ///< from here on; null: it was never used
  };
  std::array<Part, 2> parts{};

  void* stream() const { return made_stream->get(); }
  void* pack_stream() const { return overlaps ? made_pack_stream->get() : stream(); }
  void* unpack_stream() const { return overlaps ? made_unpack_stream->get() : stream(); }
  /// The same on all ranks for the group's bucket of that number.
  Part& part_for(std::uint64_t number) { return parts[overlaps ? number % parts.size() : 0]; }

  void open(Gpu& gpu);
  /// What has come to where all streams are now: pass when nothing that is on them now runs any more.
  std::vector<std::shared_ptr<const DevicePoint>> marks(Gpu& gpu) const;
};
inline constexpr std::size_t bulk_lane = 0, urgent_lane = 1, nccl_lanes = 2;

/// What one rank's groups share: the GPU, two lanes for all of NCCL's work, and the order of the launches in both.
/// Takes nothing of the GPU before open().
struct NcclRank {
  NcclRank(const NcclTable& nccl, Gpu& gpu, const NcclTuning& sizes)
      : table(nccl),
        gpu(gpu),
        tuning(sizes),
        memory(std::make_shared<NcclMemory>(nccl, gpu)),
        lanes{NcclLane{StreamPriority::high, 32, true}, NcclLane{StreamPriority::highest, 8, false}} {}

  /// Makes the lanes' streams and loads the kernels, once. Throws Error{backend}.
  void open();

  /// The lane of a bucket of a group of `ranks` ranks, the same on each: small ones, and those of a priority above 0,
  /// do not wait on the GPU for others.
  std::size_t lane_of(const Bucket& bucket, int ranks) const;

  /// The memory to pack into of both lanes, made when it is first asked for and kept; opens. Throws Error{backend} if
  /// there is none.
  const std::shared_ptr<std::byte>& staging();
  std::int64_t urgent_staging_bytes() const { return std::min<std::int64_t>(tuning.staging_bytes, 4 << 20); }
  /// Of each of the bulk lane's parts.
  std::int64_t bulk_staging_bytes() const { return tuning.staging_bytes / 512 * 256; }
  /// What any bucket has at least.
  std::int64_t least_staging_bytes() const { return std::min(urgent_staging_bytes(), bulk_staging_bytes()); }

  const NcclTable& table;
  Gpu& gpu;
  const NcclTuning tuning;
  std::shared_ptr<NcclMemory> memory;
  std::array<NcclLane, nccl_lanes> lanes;
  LaunchOrder order;
  RetiredComms retired{table, gpu, tuning.blocking};

 private:
  std::shared_ptr<std::byte> staging_;
};

}  // namespace kolo
