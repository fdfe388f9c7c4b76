#include "ops/mpi/pipeline.h"

#include <new>

namespace kolo {

MpiPipeline::MpiPipeline(MPI_Comm comm, const MpiTuning& tuning)
    : tuning_(tuning), group_(comm), last_of_(tuning.in_flight) {
  transfers_.reserve(tuning.in_flight);
  for (std::size_t i = 0; i < tuning.in_flight; ++i) transfers_.emplace_back(group_, tuning_);
}

MpiPipeline::~MpiPipeline() {
  if (!failure_) return;
  (void)group_.exchange.release();
  (void)group_.gather.release();
  if (begun_ == finished_) return;
  for (MpiTransfer& transfer : transfers_) transfer.leak();
}

std::uint64_t MpiPipeline::staged_bytes() const {
  std::uint64_t sum = 0;
  for (const MpiTransfer& transfer : transfers_) sum += transfer.staged_bytes();
  return sum;
}

void MpiPipeline::enqueue(MpiJob& job) {
  job.upcoming = chunk_at(job.bucket, group_.ranks, {}, tuning_.chunks);
  job.complete = job.upcoming.count == 0;
  if (!job.complete) jobs_.push_back(&job);
}

bool MpiPipeline::advance() {
  if (failure_) throw Error(*failure_);
  bool any = false;
  try {
    for (bool moved = true; moved; any |= moved) {
      moved = begin_next();
      moved |= proceed_next();
      moved |= finish_next();
    }
  } catch (const Error& error) {
    failure_ = error.failure();
    throw;
  }
  return any;
}

void MpiPipeline::abandon() noexcept {
  if (!failure_) failure_ = Failure{ErrorCode::aborted, "an operation of the group was abandoned"};
  jobs_.clear();
}

bool MpiPipeline::begin_next() {
  if (jobs_.empty() || begun_ - finished_ == transfers_.size()) return false;
  MpiJob& job = *jobs_.front();
  const Chunk chunk = job.upcoming;
  job.upcoming = chunk_at(job.bucket, group_.ranks, chunk.next, tuning_.chunks);
  const bool last = job.upcoming.count == 0;
  if (last) jobs_.pop_front();
  last_of_[begun_ % transfers_.size()] = last ? &job : nullptr;
  transfer(begun_++).begin(job.bucket, chunk);
  return true;
}

bool MpiPipeline::proceed_next() {
  if (proceeded_ == begun_ || !transfer(proceeded_).arrived()) return false;
  transfer(proceeded_++).proceed();
  return true;
}

bool MpiPipeline::finish_next() {
  if (finished_ == proceeded_ || !transfer(finished_).arrived()) return false;
  transfer(finished_).finish();
  if (MpiJob* job = last_of_[finished_ % transfers_.size()]) job->complete = true;
  ++finished_;
  return true;
}

}  // namespace kolo
