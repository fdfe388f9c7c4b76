#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "ops/chunk.h"
#include "ops/gpu/packer.h"
#include "ops/staged/backend.h"

namespace kolo {

/// A bucket in the pipeline.
struct StagedJob {
  const Bucket* bucket = nullptr;
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
  StagedPipeline(Gpu& gpu, BackendList hosts, int ranks, int rank, const StagedTuning& tuning);

  void enqueue(StagedJob& job) { waiting_.push_back(&job); }
  /// Advances all jobs. Throws what hosts and GPU do.
  void advance();
  /// Forgets all jobs and touches nothing any more.
  void abandon() noexcept;

  BackendList& hosts() { return hosts_; }
  Backend* host_for(const Signature& signature) const;
  std::uint64_t staged_bytes() const { return staged_bytes_; }

 private:
  struct Slot {
    GpuBuffer memory;
    bool used = false;
  };
  struct InFlight {
    StagedJob* job;
    Slot* slot;
    GpuBuffer own;  // instead of the slot's, for buckets that are not cut
    std::byte* memory;
    Chunk chunk;
    Bucket bucket;  // on the host
    std::shared_ptr<const DevicePoint> copied_in, copied_out;
    std::unique_ptr<Operation> operation;
    bool started = false;
  };

  void begin_chunks();
  void begin(StagedJob& job, Slot* slot);
  void start(InFlight& flight);
  void finish(InFlight& flight);
  Slot* free_slot();
  void describe(InFlight& flight);
  void describe_whole(InFlight& flight);
  void copy(InFlight& flight, bool in);
  void run(std::vector<PackItem>& items, bool in);

  Gpu& gpu_;
  BackendList hosts_;
  int ranks_;
  int rank_;
  ChunkRule rule_;
  GpuStream in_, out_;
  Packer pack_, unpack_;
  std::vector<Slot> slots_;
  std::deque<StagedJob*> waiting_;                   // with chunks to begin
  std::deque<std::unique_ptr<InFlight>> in_flight_;  // in order
  std::uint64_t staged_bytes_ = 0;
  bool abandoned_ = false;
};

}  // namespace kolo
