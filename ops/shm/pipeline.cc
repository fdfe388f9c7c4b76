#include "ops/shm/pipeline.h"

#include <utility>

#include "ops/kernels/copy.h"

namespace kolo {

using Phase = ShmBoard::Phase;

ShmPipeline::ShmPipeline(ShmBoard board, std::shared_ptr<ShmMemory> memory, std::vector<int> members)
    : board_(std::move(board)),
      layout_(board_.ranks(), board_.tuning()),
      direct_access_(std::move(memory), std::move(members), board_.rank()) {
  for (std::int64_t i = 0; i < board_.tuning().in_flight; ++i) transfers_.emplace_back(board_, direct_access_);
}

void ShmPipeline::enqueue(ShmJob& job) {
  if (!job.complete) jobs_.push_back(&job);
}

bool ShmPipeline::advance() {
  if (abandoned_) return false;
  const bool broken = board_.broken();  // first: a peer that left has done its part of what can still be completed
  bool moved = true;
  while (moved && (collected_ != packed_ || !jobs_.empty())) {
    moved = pack_next();
    moved |= combine_next();
    moved |= collect_next();
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
  while (free_ < packed_ && layout_.collide(free_, packed_, bytes)) {
    const ShmFlow& flow = transfer(free_).flow();
    if (free_ == collected_ || (flow.shows(board_.rank()) && !readers_reached(flow, free_))) return false;
    ++free_;
  }
  return true;
}

/// Whether all other ranks that read something in a chunk have collected it.
bool ShmPipeline::readers_reached(const ShmFlow& flow, std::uint64_t chunk) {
  return every_peer([&](int rank) { return !flow.reads(rank) || board_.reached(Phase::collected, rank, chunk); });
}

bool ShmPipeline::all_combined(std::uint64_t chunk) {
  return every_peer([&](int rank) { return board_.reached(Phase::combined, rank, chunk); });
}

bool ShmPipeline::pack_next() {
  if (jobs_.empty()) return false;
  ShmJob& job = *jobs_.front();
  if (job.asks == ShmJob::Asks::undecided)
    job.asks = direct_access_.asks(job, board_.tuning()) ? ShmJob::Asks::next : ShmJob::Asks::no;
  if (job.asks == ShmJob::Asks::waits) return false;
  const std::size_t bytes = job.next_bytes();
  if (!make_room(bytes)) return false;
  ShmTransfer& next = transfer(packed_);
  const CopyTo shows_in = shows_.choose(bytes);
  next.begin(job, packed_, layout_.place(packed_, bytes), shows_in,
             job.replaces ? replaces_.choose(bytes) : CopyTo::cache);
  if (const auto pack = next.method().pack) {
    shows_.measure(bytes, shows_in, [&] {
      pack(next);
      if (shows_in == CopyTo::memory) finish_copies();
      return next.put_bytes();
    });
    next.show_packed();
  }
  ++packed_;
  if (next.last()) jobs_.pop_front();
  return true;
}

bool ShmPipeline::combine_next() {
  if (combined_ == packed_) return false;
  ShmTransfer& next = transfer(combined_);
  if (const auto combine = next.method().combine) {
    if (next.method().pack && !next.all_packed()) return false;
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
  const bool reads = next.flow().reads(board_.rank());
  if (reads && !(next.method().combine ? next.only_helps() || all_combined(collected_) : next.all_packed()))
    return false;
  if (const auto collect = next.method().collect) {
    replaces_.measure(next.replaced_bytes(), next.replaces_in(), [&] {
      collect(next);
      if (next.job().large) finish_copies();
      return next.written_bytes();
    });
  }
  if (reads) board_.advance(Phase::collected, collected_);
  ++collected_;
  if (next.last()) next.job().complete = true;
  return true;
}

}  // namespace kolo
