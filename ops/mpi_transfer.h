#pragma once

#include <mpi.h>

#include <cstdint>
#include <vector>

#include <kolo/backend.h>

#include "ops/device.h"
#include "ops/mpi_handles.h"
#include "ops/segment.h"

namespace kolo {

/// The ranks that talk, and their two channels: MPI wants collectives of one communicator started in one order
/// everywhere, and ranks start second phases at different times.
struct MpiGroup {
  explicit MpiGroup(MPI_Comm comm);

  MpiComm exchange;  ///< first phase of every segment, in segment order
  MpiComm gather;    ///< second phase of those segments that have one, in segment order
  int rank = 0;
  int ranks = 1;
};

/// Sizes that decide how segments travel, in bytes; equal on all ranks. Chosen by measurement.
struct MpiTuning {
  SegmentRule segments;
  std::int64_t small = 16 << 10;  ///< up to this size of a segment everybody sends everything to everybody
  std::size_t in_flight = 4;      ///< segments on their way at one time; each has staging of its own
};

/// One segment on its way through MPI, and staging memory for it that serves one segment after the other.
///
/// Life of a segment: begin() starts its first phase; when that has arrived, proceed() starts the second, if any; when
/// that has arrived too, finish() puts the results in place. The segment's tensors are used in between.
class MpiTransfer {
 public:
  MpiTransfer(const MpiGroup& group, const MpiTuning& tuning);

  void begin(const Bucket& bucket, const Segment& segment);
  void proceed();
  void finish();

  /// Whether the phase that was started last has arrived. Throws Error{backend}.
  bool arrived();

  /// Forgets memory that MPI may still write to.
  void leak() noexcept;

 private:
  void begin_all_reduce();
  void proceed_all_reduce();
  void begin_broadcast();
  void finish_broadcast();

  bool travels_whole() const;
  void exchange_slices();
  void gather_slices();

  bool is_root() const { return bucket_->signature.root == group_.rank; }
  std::size_t element_bytes() const { return size_of(bucket_->signature.dtype); }
  int bytes() const { return static_cast<int>(static_cast<std::size_t>(segment_.count) * element_bytes()); }
  Slice slice(int rank) const { return slice_of(segment_.count, element_bytes(), group_.ranks, rank); }
  const BucketTensor& first_tensor() const { return bucket_->tensors[segment_.position.tensor]; }

  const std::byte* packed_input();
  void unpack_output();

  const MpiGroup& group_;
  const MpiTuning& tuning_;
  const Bucket* bucket_ = nullptr;
  Segment segment_;
  bool staged_ = false;  // whether the segment goes through packed_, not straight from and to the tensor
  std::byte* input_ = nullptr;
  std::byte* output_ = nullptr;
  DeviceBuffer packed_;
  DeviceBuffer received_;
  std::vector<int> counts_, offsets_, slice_counts_,
      slice_offsets_;  // per rank; MPI reads them until a phase has arrived
  std::vector<const void*> sources_;
  MPI_Request request_ = MPI_REQUEST_NULL;
};

}  // namespace kolo
