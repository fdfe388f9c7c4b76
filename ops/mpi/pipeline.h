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
  Chunk upcoming;  ///< the first chunk that has not begun
  bool complete = false;
};

/// The chunks of all operations of one group, in the order in which the operations were started, on their way through
/// MPI.
///
/// Chunks are numbered; number s uses transfer s % transfers. Three counters say how far they are: chunks below
/// `finished_` are done, those below `proceeded_` have started their second phase, those below `begun_` their first.
/// Each counter only grows by one at a time, so on every rank the first phases of all chunks start in the order of
/// their numbers, and so do the second phases: what MPI asks for each of the two communicators, although ranks move at
/// different speeds. Several chunks are on their way at once, also of different operations, so that one's reduction
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

  /// Moves on whatever can without waiting. Returns whether anything did. Throws Error{backend | aborted}, and then
  /// again for ever.
  bool advance();

  /// No job is touched any more, and nothing collective is done; advance() throws Error{aborted}.
  void abandon() noexcept;

 private:
  bool begin_next();
  bool proceed_next();
  bool finish_next();
  MpiTransfer& transfer(std::uint64_t chunk) { return transfers_[chunk % transfers_.size()]; }

  MpiTuning tuning_;
  MpiGroup group_;
  std::vector<MpiTransfer> transfers_;
  std::vector<MpiJob*> last_of_;  // per transfer: the job whose last chunk it carries, else null
  std::deque<MpiJob*> jobs_;      // with chunks that have not begun
  std::uint64_t begun_ = 0;
  std::uint64_t proceeded_ = 0;
  std::uint64_t finished_ = 0;
  std::optional<Failure> failure_;
};

}  // namespace kolo
