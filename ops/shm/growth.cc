#include "ops/shm/growth.h"

#include <cstring>
#include <utility>

namespace kolo {
ShmGrowth::ShmGrowth(ShmBoard& board, std::shared_ptr<ShmMemory> memory, std::vector<int> members,
                     const ShmTuning& tuning, std::function<void(const std::string&)> report)
    : board_(board),
      memory_(std::move(memory)),
      members_(std::move(members)),
      tuning_(tuning),
      report_(std::move(report)),
      next_(board.tuning().ring > 0 ? Step::done : Step::addresses) {}

void ShmGrowth::show(const ShmJob&, std::byte* to) {
  if (next_ == Step::mapped) {
    std::memcpy(to, &mapped_, sizeof(mapped_));
    return;
  }
  const std::size_t bytes = ChunkLayout::bytes(board_.ranks(), tuning_);
  PeerAddress address;
  parts_.resize(members_.size());
  auto& mine = parts_[static_cast<std::size_t>(board_.rank())];
  try {
    mine = memory_->reserve(bytes);
    address = memory_->find(mine.get(), bytes);
  } catch (const Error& error) {
    why_not_ = error.what();
  }
  std::memcpy(to, &address, sizeof(address));
}

void ShmGrowth::read(ShmJob& job, const Shown& shown) {
  if (next_ == Step::addresses) {
    next_ = map_all(shown) ? Step::mapped : Step::done;
  } else {
    bool all = true;
    for (int rank = 0; rank < board_.ranks(); ++rank) all &= read_as<bool>(shown(rank));
    if (all) board_.grow(std::move(parts_), tuning_);
    next_ = Step::done;
  }
  if (next_ == Step::done) parts_.clear();
  if (!why_not_.empty() && report_)
    report_(std::exchange(why_not_, "") + "; its large tensors travel in small pieces, which is slow");
  job.ask_again();
}

/// Whether all have memory; mapped_: whether this rank can reach it.
bool ShmGrowth::map_all(const Shown& shown) {
  mapped_ = true;
  for (int rank = 0; rank < board_.ranks(); ++rank) {
    const auto address = read_as<PeerAddress>(shown(rank));
    if (address.piece == PeerAddress::nowhere) return false;
    auto& part = parts_[static_cast<std::size_t>(rank)];
    if (part || !mapped_) continue;
    try {
      part = memory_->map(members_[static_cast<std::size_t>(rank)], address);
    } catch (const Error& error) {
      why_not_ = error.what();
      mapped_ = false;
    }
  }
  return true;
}

}  // namespace kolo
