#include "ops/mpi/pipeline.h"

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
  job.upcoming = chunk_at(job.bucket, group_.ranks(), {}, tuning.chunks);
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
      moved |= proceed_next();
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
  proceeded_ = finished_;
}

bool MpiPipeline::begin_next() {
  if (jobs_.empty() || begun_ - finished_ == transfers_.size()) return false;
  MpiJob& job = *jobs_.front();
  if (!transfer(begun_).reserve(job.bucket, job.upcoming, begun_ == finished_)) return false;
  job.upcoming = chunk_at(job.bucket, group_.ranks(), job.upcoming.next, group_.channel().tuning().chunks);
  const bool last = job.upcoming.count == 0;
  if (last) jobs_.pop_front();
  last_of_[begun_ % transfers_.size()] = last ? &job : nullptr;
  const std::uint64_t chunk = begun_++;
  spend(transfer(chunk));
  transfer(chunk).begin(group_.tag(chunk));
  return true;
}

bool MpiPipeline::proceed_next() {
  if (proceeded_ == begun_ || !transfer(proceeded_).arrived()) return false;
  spend(transfer(proceeded_));
  transfer(proceeded_++).proceed();
  return true;
}

bool MpiPipeline::finish_next() {
  if (finished_ == proceeded_ || !transfer(finished_).arrived()) return false;
  spend(transfer(finished_));
  transfer(finished_).finish();
  if (MpiJob* job = last_of_[finished_ % transfers_.size()]) job->complete = true;
  ++finished_;
  return true;
}

}  // namespace kolo
