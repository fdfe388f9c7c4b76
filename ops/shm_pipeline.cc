#include "ops/shm_pipeline.h"

#include <utility>

#include "ops/copy.h"

namespace kolo {

using Phase = ShmBoard::Phase;

ShmPipeline::ShmPipeline(ShmBoard board) : board_(std::move(board)), places_(board_.ranks(), board_.tuning()) {
  for (std::int64_t i = 0; i < board_.tuning().in_flight; ++i) transfers_.emplace_back(board_);
}

void ShmPipeline::enqueue(ShmJob& job) {
  if (!job.complete) jobs_.push_back(&job);
}

bool ShmPipeline::advance() {
  if (abandoned_) return false;
  const bool broken = board_.broken();  // first: a peer that left has done its part of what can still be completed
  bool moved = true;
  while (moved) {
    moved = collect_next();
    moved |= combine_next();
    moved |= pack_next();
  }
  return !broken;
}

void ShmPipeline::abandon() noexcept {
  abandoned_ = true;
  jobs_.clear();
  board_.break_up();
}

/// Whether this rank may write the next chunk, of `bytes` bytes, to its place: nobody needs what was there.
bool ShmPipeline::make_room(std::size_t bytes) {
  while (free_ < packed_ && places_.collide(free_, packed_, bytes)) {
    if (free_ == collected_ || !board_.all_reached(Phase::collected, free_)) return false;
    ++free_;
  }
  return true;
}

bool ShmPipeline::pack_next() {
  if (jobs_.empty() || !make_room(jobs_.front()->next_bytes())) return false;
  ShmJob& job = *jobs_.front();
  ShmTransfer& next = transfer(packed_);
  const std::size_t bytes = job.next_bytes();
  const CopyTo shows_in = stores_.choose(bytes);
  next.begin(job, places_.place(packed_, bytes), shows_in);
  stores_.measure([&] {
    job.method->pack(next);
    if (shows_in == CopyTo::memory) finish_copies();
    return next.put_bytes();
  });
  board_.advance(Phase::packed, packed_++);
  if (next.last()) jobs_.pop_front();
  return true;
}

bool ShmPipeline::combine_next() {
  if (combined_ == packed_) return false;
  ShmTransfer& next = transfer(combined_);
  if (const auto combine = next.job().method->combine) {
    if (!board_.all_reached(Phase::packed, combined_)) return false;
    combine(next);
    finish_copies();
    board_.advance(Phase::combined, combined_);
  }
  ++combined_;
  return true;
}

bool ShmPipeline::collect_next() {
  if (collected_ == combined_) return false;
  ShmTransfer& next = transfer(collected_);
  const Phase awaited = next.job().method->combine ? Phase::combined : Phase::packed;
  for (int rank = 0; rank < board_.ranks(); ++rank) {
    if (rank != board_.rank() && next.reads_from(rank) && !board_.reached(awaited, rank, collected_)) return false;
  }
  next.job().method->collect(next);
  if (next.job().large) finish_copies();
  board_.advance(Phase::collected, collected_++);
  if (next.last()) next.job().complete = true;
  return true;
}

}  // namespace kolo
