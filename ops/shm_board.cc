#include "ops/shm_board.h"

#include <algorithm>
#include <utility>

namespace kolo {

std::size_t ShmBoard::slot_stride(int ranks, const ShmTuning& tuning) {
  const auto bytes = static_cast<std::size_t>(std::max<std::int64_t>(tuning.slot, std::int64_t{64} * ranks));
  return (bytes + line - 1) / line * line;
}

std::size_t ShmBoard::slots_begin(int ranks) {
  constexpr std::size_t page = 4096;
  const std::size_t counters = sizeof(Header) + static_cast<std::size_t>(ranks) * phases * sizeof(Counter);
  return (counters + page - 1) / page * page;
}

std::size_t ShmBoard::bytes(int ranks, const ShmTuning& tuning) {
  const auto slots = static_cast<std::size_t>(ranks) * static_cast<std::size_t>(tuning.slots);
  return slots_begin(ranks) + slots * slot_stride(ranks, tuning);
}

ShmBoard::ShmBoard(std::shared_ptr<Region> region, int rank, int ranks, const ShmTuning& tuning, std::vector<Bell*> bells)
    : region_(std::move(region)),
      rank_(rank),
      ranks_(ranks),
      tuning_(tuning),
      bells_(std::move(bells)),
      slots_(static_cast<std::uint64_t>(tuning.slots)),
      slot_stride_(slot_stride(ranks, tuning)),
      counters_(region_->at<Counter>(sizeof(Header))),
      first_slot_(region_->data() + slots_begin(ranks)) {
  for (auto& seen : seen_) seen.resize(static_cast<std::size_t>(ranks));
}

void ShmBoard::break_up() noexcept {
  region_->at<Header>(0)->broken.store(1);
  ring_peers();
}

}  // namespace kolo
