#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "ops/mpi/transfer.h"

namespace kolo {

/// A bucket's place in the pipeline. Lives from enqueue() until it is complete, or until abandon().
struct MpiJob {
  Bucket bucket;
  Segment upcoming;  ///< the first segment that has not begun
  bool complete = false;
};

/// The segments of all operations of one group, in the order in which the operations were started, on their way through
/// MPI.
///
/// Segments are numbered; number s uses transfer s % transfers. Three counters say how far they are: segments below
/// `finished_` are done, those below `proceeded_` have started their second phase, those below `begun_` their first.
/// Each counter only grows by one at a time, so on every rank the first phases of all segments start in the order of
/// their numbers, and so do the second phases: what MPI asks for each of the two communicators, although ranks move at
/// different speeds. Several segments are on their way at once, also of different operations, so that one's reduction
/// overlaps with the others' communication.
class MpiPipeline {
 public:
  explicit MpiPipeline(MPI_Comm comm, const MpiTuning& tuning);
  ~MpiPipeline();
  MpiPipeline(const MpiPipeline&) = delete;
  MpiPipeline& operator=(const MpiPipeline&) = delete;

  void enqueue(MpiJob& job);

  /// Copied into and out of staging so far.
  std::uint64_t staged_bytes() const;

  /// Moves on whatever can without waiting. Throws Error{backend | aborted}, and then again for ever.
  void advance();

  /// No job is touched any more, and nothing collective is done; advance() throws Error{aborted}.
  void abandon() noexcept;

 private:
  bool begin_next();
  bool proceed_next();
  bool finish_next();
  MpiTransfer& transfer(std::uint64_t segment) { return transfers_[segment % transfers_.size()]; }

  MpiTuning tuning_;
  MpiGroup group_;
  std::vector<MpiTransfer> transfers_;
  std::vector<MpiJob*> last_of_;  // per transfer: the job whose last segment it carries, else null
  std::deque<MpiJob*> jobs_;      // with segments that have not begun
  std::uint64_t begun_ = 0;
  std::uint64_t proceeded_ = 0;
  std::uint64_t finished_ = 0;
  std::optional<Failure> failure_;
};

}  // namespace kolo
