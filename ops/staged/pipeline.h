#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "ops/chunk.h"
#include "ops/gpu/gpu.h"
#include "ops/host/host_buffer.h"
#include "ops/staged/backend.h"

namespace kolo {

/// Pinned memory of one rank, which its groups share: made when it is needed, then used again; freed with the last
/// group, since freeing it waits for the GPU.
///
/// A group with a claim always gets a chunk where it holds none: claim() makes one if there are not enough for all who
/// hold none, and who holds some takes more only where enough are left for them. So in each group the oldest chunk
/// that has not ended is begun on every rank, whatever other groups hold, and ends, since the hosts of a group need
/// nothing of another. What groups take from each other is how many chunks are in flight.
class ChunkPool final : public std::enable_shared_from_this<ChunkPool> {
 public:
  /// Of one group; held by whoever is about to need a chunk.
  struct Claim {
    std::size_t held = 0;
  };

  /// `chunks`: the most that are made, but for claims.
  ChunkPool(Gpu& gpu, std::size_t chunk_bytes, std::size_t chunks)
      : gpu_(gpu), chunk_bytes_(chunk_bytes), chunks_(chunks) {}

  /// Throws Error{backend} if there is no memory.
  std::shared_ptr<Claim> claim();
  /// A chunk, if there is one to spare, or it is the claim's first.
  std::optional<GpuBuffer> take(Claim& claim);
  void give_back(Claim& claim, GpuBuffer chunk);

 private:
  GpuBuffer make(std::size_t bytes) { return GpuBuffer(gpu_, bytes, GpuBuffer::Kind::pinned); }

  Gpu& gpu_;
  std::size_t chunk_bytes_;
  std::size_t chunks_;
  std::size_t made_ = 0;
  std::size_t without_ = 0;  // claims that hold none; there are as many free chunks at least
  std::vector<GpuBuffer> free_;
};

/// A bucket in the pipeline.
struct StagedJob {
  const Bucket* bucket = nullptr;
  std::shared_ptr<ChunkPool::Claim> claim{};
  BucketPosition next{};  ///< where the next chunk begins
  bool ordered = false;   ///< copies wait for the streams that wrote the inputs
  bool all_begun = false;
  std::size_t under_way = 0;  ///< chunks
  std::shared_ptr<const DevicePoint> result{};
};

/// The chunks of a group's buckets, one after the other: copied in, started on a host backend in the same order on all
/// ranks, copied out.
class StagedPipeline final {
 public:
  StagedPipeline(Gpu& gpu, std::shared_ptr<ChunkPool> pool, BackendList hosts, int ranks, int rank,
                 std::int64_t chunk_bytes);

  /// What jobs need, streams and a claim to memory: taken on first use. Throws Error{backend}.
  std::shared_ptr<ChunkPool::Claim> reserve();
  void enqueue(StagedJob& job) { waiting_.push_back(&job); }
  /// Advances all jobs. Throws what hosts and GPU do.
  void advance();
  /// Whether the last advance() moved something on the host.
  bool moved() const { return moved_; }
  /// Forgets all jobs and touches nothing any more.
  void abandon() noexcept;

  BackendList& hosts() { return hosts_; }
  const std::shared_ptr<ChunkPool>& pool() const { return pool_; }
  Backend* host_for(const Signature& signature) const;
  std::uint64_t staged_bytes() const { return staged_bytes_; }

 private:
  /// Of a bucket that hosts must have in one piece: it gathers in memory that is not pinned, chunk by chunk.
  struct Whole {
    HostBuffer memory;
    std::size_t come = 0;                       // bytes, or those that have left again
    std::shared_ptr<const DevicePoint> left{};  // by the chunk that leaves; null: none has
  };
  struct InFlight {
    StagedJob* job;
    GpuBuffer memory;
    std::optional<Whole> whole{};
    Chunk chunk{};
    Bucket bucket{};  // on the host
    std::shared_ptr<const DevicePoint> copied_in{}, copied_out{};
    std::unique_ptr<Operation> operation{};
    bool started = false;
  };

  void begin_chunks();
  void begin(StagedJob& job, GpuBuffer memory);
  void copy_in(InFlight& flight);
  bool has_come(InFlight& flight);
  void start(InFlight& flight);
  void copy_out(InFlight& flight);
  void copy_out_whole(InFlight& flight);
  void finish(InFlight& flight);
  void end_oldest();
  void describe(InFlight& flight);
  void describe_whole(InFlight& flight);
  void copy(InFlight& flight, bool in);
  void run(const std::vector<PackItem>& items, void* stream);

  Gpu& gpu_;
  std::shared_ptr<ChunkPool> pool_;
  std::weak_ptr<ChunkPool::Claim> claim_;
  BackendList hosts_;
  int ranks_;
  int rank_;
  ChunkRule rule_;
  std::optional<GpuStream> in_, out_;
  std::deque<StagedJob*> waiting_;                   // with chunks to begin
  std::deque<std::unique_ptr<InFlight>> in_flight_;  // in order
  std::uint64_t staged_bytes_ = 0;
  bool moved_ = false;
  bool abandoned_ = false;
};

}  // namespace kolo
