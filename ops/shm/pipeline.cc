#include "ops/shm/pipeline.h"

#include <algorithm>
#include <utility>

#include "ops/kernels/copy.h"
#include "ops/shm/small.h"

namespace kolo {
namespace {

constexpr int phases = 3;

}  // namespace

ShmPipeline::ShmPipeline(ShmBoard board, const std::shared_ptr<ShmMemory>& memory, const std::vector<int>& members,
                         const ShmTuning& tuning, ShmChooser chooser,
                         const std::function<void(const std::string&)>& report)
    : board_(std::move(board)),
      growth_(board_, memory, members, tuning, report),
      access_(memory, members, board_.rank(), std::move(chooser), report),
      budget_(board_.tuning().step) {
  make_transfers();
}

/// Returns whether there are more than before.
bool ShmPipeline::make_transfers() {
  const auto count = static_cast<std::size_t>(board_.tuning().in_flight);
  if (transfers_.size() >= count) return false;
  while (transfers_.size() < count) transfers_.emplace_back(board_);
  some_places_ = std::max<std::uint64_t>(count / 4, 1);
  return true;
}

bool ShmPipeline::complete_at_once(const Bucket& bucket) {
  if (collected_ != packed_ || !jobs_.empty() || abandoned_) return false;
  const std::optional<ShmSmall> small = ShmSmall::of(bucket, board_);
  if (!small) return false;
  if (make_transfers()) free_ = packed_;
  if (!make_room(small->bytes())) return false;
  const ChunkPlace place = board_.layout().place(packed_, small->bytes());
  const bool reads = small->flow.reads(board_.rank());
  const auto shown = [&](int rank) { return !small->flow.shows(rank) || board_.stamped(place, rank, packed_); };
  if (reads && !every_peer(shown)) return false;
  transfer(packed_).stand_for(small->flow);
  if (small->flow.shows(board_.rank())) {
    small->show(board_, place);
    board_.set_stamp(place, packed_, {});
  }
  small->collect(board_, place);
  be_heard(reads, true, {});
  packed_ = combined_ = ++collected_;
  return true;
}

void ShmPipeline::enqueue(ShmJob& job) {
  if (!job.complete) jobs_.push_back(&job);
}

bool ShmPipeline::advance(std::uint64_t& round) {
  if (abandoned_) return false;
  const bool broken = board_.broken();  // first: a peer that left has done its part of what can still be completed
  if (!tokens_.empty()) compare_tokens();
  budget_.begin(round);
  for (int idle = 0; idle < phases && (broken || !spent()) && (collected_ != packed_ || !jobs_.empty());) {
    idle = next_phase() ? 0 : idle + 1;
  }
  return !broken;
}

/// The phases take turns. Returns whether this one has done something.
bool ShmPipeline::next_phase() {
  const Phase phase = phase_;
  phase_ = phase == Phase::collected ? Phase::packed : static_cast<Phase>(static_cast<int>(phase) + 1);
  return phase == Phase::packed ? pack_next() : phase == Phase::combined ? combine_next() : collect_next();
}

void ShmPipeline::abandon() noexcept {
  abandoned_ = true;
  jobs_.clear();
  board_.break_up();
}

/// Whether this rank may write the next chunk, of `bytes` bytes, to its place: nobody needs what was there.
bool ShmPipeline::make_room(std::size_t bytes) {
  while (free_ < packed_ && board_.layout().collide(free_, packed_, bytes)) {
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

/// A job with a token takes its number. Returns whether it has one, if it needs one.
bool ShmPipeline::begin(ShmJob& job) {
  if (job.bucket.token == 0 || job.number) return true;
  if (tokens_.size() == ShmBoard::begun_at_once) return false;
  job.number = jobs_compared_ + tokens_.size();
  tokens_.push_back(job.bucket.token);
  board_.begin(*job.number, job.bucket.token, !job.flow.shows(board_.rank()));
  return true;
}

void ShmPipeline::compare_tokens() {
  const auto begun_by_all_with = [this](std::uint64_t token) {
    return every_peer([&](int rank) {
      const auto peer = board_.compare(jobs_compared_, rank, token);
      if (peer == ShmBoard::Peer::other) throw_other_token();
      return peer == ShmBoard::Peer::same;
    });
  };
  for (; !tokens_.empty() && begun_by_all_with(tokens_.front()); ++jobs_compared_) tokens_.erase(tokens_.begin());
}

/// Its turn has come, or an answer: how it is cut, and what is asked next.
void ShmPipeline::decide(ShmJob& job) {
  if (make_transfers()) free_ = packed_;  // the board has grown: nothing was on its way
  job.choose({ShmWay::ring, board_.tuning().chunk});
  job.question = nullptr;
  if (growth_.asks(job)) job.question = &growth_;
  if (!job.question && access_.asks(job, board_.tuning())) job.question = &access_;
  job.asks = job.question ? ShmJob::Asks::next : ShmJob::Asks::no;
}

bool ShmPipeline::pack_next() {
  if (jobs_.empty()) return false;
  ShmJob& job = *jobs_.front();
  if (!begin(job)) return false;
  if (job.asks == ShmJob::Asks::undecided) decide(job);
  if (job.asks == ShmJob::Asks::waits) return false;
  const std::size_t bytes = job.next_bytes();
  if (!make_room(bytes)) return false;
  ShmTransfer& next = transfer(packed_);
  StorePolicy& shows = shows_of(bytes);
  const bool writes = job.asks != ShmJob::Asks::next && job.flow.shows(board_.rank());
  const CopyTo shows_in = writes ? shows.choose(bytes) : CopyTo::cache;
  next.begin(job, packed_, board_.layout().place(packed_, bytes), shows_in,
             results_of(job).choose(job.next_timed_bytes()));
  if (const auto pack = next.method().pack) {
    budget_.spend(next.bytes());
    shows.measure(writes ? bytes : 0, shows_in, [&] {
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
    if (next.job().peer_tensors && board_.broken()) return false;  // who has given up may use its memory again
    budget_.spend(next.piece_work());
    const std::size_t before = next.written_bytes();
    results_of(next.job()).measure(next.job().pushes ? next.timed_bytes() : 0, next.results_in(), [&] {
      combine(next);
      finish_copies();
      return next.written_bytes() - before;
    });
    if (next.job().peer_tensors && board_.broken()) return false;  // who left may have written to what was read
    if (next.next_piece()) return true;
    board_.advance(Phase::combined, combined_);
  }
  ++combined_;
  return true;
}

bool ShmPipeline::collect_next() {
  if (collected_ == combined_) return false;
  ShmTransfer& next = transfer(collected_);
  if (next.job().number && *next.job().number >= jobs_compared_) return false;
  const bool reads = next.flow().reads(board_.rank());
  if (reads && !(next.method().combine ? next.only_helps() || all_combined(collected_) : next.all_packed()))
    return false;
  if (const auto collect = next.method().collect) {
    budget_.spend(next.bytes());
    results_of(next.job()).measure(next.timed_bytes(), next.results_in(), [&] {
      collect(next);
      if (next.job().large || next.results_in() == CopyTo::memory) finish_copies();
      return next.written_bytes();
    });
  }
  const auto& number = next.job().number;
  be_heard(reads, next.hot(), number && next.last() ? std::optional(*number + 1) : std::nullopt);
  ++collected_;
  if (next.last()) {
    if (next.job().trial > 0) access_.complete(next.job());
    next.job().complete = true;
  }
  return true;
}

/// This rank has collected chunk `collected_`. Peers wait for room. Of hot places they have many, so it does not matter
/// when they hear of the last ones. `next_job`: who has not begun that one, if it has a number, waits for none.
void ShmPipeline::be_heard(bool reads, bool hot, std::optional<std::uint64_t> next_job) {
  unheard_ |= reads;
  if (!unheard_ || (hot && (collected_ + 1) % some_places_ != 0)) return;
  board_.advance(Phase::collected, collected_, next_job);
  unheard_ = false;
}

}  // namespace kolo
