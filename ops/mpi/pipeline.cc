#include "ops/mpi/pipeline.h"

#include <algorithm>

namespace kolo {

std::uint64_t MpiPipeline::staged_bytes() const {
  std::uint64_t sum = 0;
  for (const MpiTransfer& transfer : transfers_) sum += transfer.staged_bytes();
  return sum;
}

void MpiPipeline::enqueue(MpiJob& job) {
  const MpiTuning& tuning = group_.channel().tuning();
  if (transfers_.empty()) {
    transfers_.reserve(tuning.in_flight);
    while (transfers_.size() < tuning.in_flight) transfers_.emplace_back(group_);
    last_of_.resize(tuning.in_flight);
  }
  job.upcoming = chunk_from(job.bucket, {});
  job.complete = job.upcoming.count == 0;
  if (!job.complete) jobs_.push_back(&job);
}

bool MpiPipeline::advance(std::uint64_t& round) {
  if (failure_) throw Error(*failure_);
  bool any = false;
  try {
    budget_.begin(round);
    for (bool moved = true; moved && !budget_.spent(); any |= moved) {
      moved = begin_next();
      moved |= proceed();
      moved |= finish_next();
    }
  } catch (const Error& error) {
    failure_ = error.failure();
    throw;
  }
  return any || budget_.spent();
}

void MpiPipeline::abandon() noexcept {
  if (!failure_) failure_ = Failure{ErrorCode::aborted, "an operation of the group was abandoned"};
  jobs_.clear();
  if (finished_ == begun_) return;
  for (std::uint64_t chunk = finished_; chunk < begun_; ++chunk) transfer(chunk).cancel();
  const auto deadline = MpiMessages::deadline();
  while (finished_ < begun_) transfer(finished_++).give_up(deadline);
}

/// A bucket that is little more than a message that MPI sends without asking travels as several of these. Blocks that
/// go from tensor to tensor to all ranks need no staging: they travel in longer messages.
Chunk MpiPipeline::chunk_from(const Bucket& bucket, BucketPosition position) const {
  const MpiTuning& tuning = group_.channel().tuning();
  const OpKind kind = bucket.signature.kind;
  ChunkRule rule = tuning.chunks;
  if (!has_blocks(kind) && static_cast<std::int64_t>(bucket.bytes()) <= 4 * tuning.eager) rule.largest = tuning.eager;
  Chunk chunk = chunk_at(bucket, group_.ranks(), position, rule);
  if (kind != OpKind::all_gather || !chunk.single || chunk.next.offset == 0) return chunk;
  const std::int64_t left = flat_length(kind, bucket.tensors[chunk.next.tensor], group_.ranks()) - chunk.next.offset;
  const std::int64_t most = tuning.message / static_cast<std::int64_t>(size_of(bucket.signature.dtype)) - chunk.count;
  const std::int64_t more = std::clamp<std::int64_t>(most, 0, left);
  chunk.count += more;
  chunk.next = more == left ? BucketPosition{chunk.next.tensor + 1, 0}
                            : BucketPosition{chunk.next.tensor, chunk.next.offset + more};
  return chunk;
}

bool MpiPipeline::begin_next() {
  if (jobs_.empty() || begun_ - finished_ == transfers_.size()) return false;
  MpiJob& job = *jobs_.front();
  if (!transfer(begun_).reserve(job.bucket, job.upcoming, begun_ == finished_)) return false;
  job.upcoming = chunk_from(job.bucket, job.upcoming.next);
  const bool last = job.upcoming.count == 0;
  if (last) jobs_.pop_front();
  last_of_[begun_ % transfers_.size()] = last ? &job : nullptr;
  const std::uint64_t chunk = begun_++;
  spend(transfer(chunk));
  transfer(chunk).begin(group_.tag(chunk));
  return true;
}

bool MpiPipeline::proceed() {
  bool moved = false;
  for (std::uint64_t chunk = finished_; chunk < begun_; ++chunk) {
    MpiTransfer& one = transfer(chunk);
    const bool follows = chunk == finished_ || one.phase() < transfer(chunk - 1).phase();
    if (one.complete() || !follows || !one.arrived()) continue;
    spend(one);
    one.proceed();
    moved = true;
  }
  return moved;
}

bool MpiPipeline::finish_next() {
  if (finished_ == begun_ || !transfer(finished_).complete()) return false;
  if (MpiJob* job = last_of_[finished_ % transfers_.size()]) job->complete = true;
  ++finished_;
  return true;
}

}  // namespace kolo
