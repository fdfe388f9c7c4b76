#include "ops/shm/board.h"

#include <utility>

namespace kolo {

std::size_t ShmBoard::memories_begin(int ranks) {
  constexpr std::size_t page = 4096;
  const std::size_t counters = sizeof(Header) + static_cast<std::size_t>(ranks) * phases * sizeof(Counter);
  return (counters + page - 1) / page * page;
}

std::size_t ShmBoard::bytes(int ranks, const ShmTuning& tuning) {
  return memories_begin(ranks) + static_cast<std::size_t>(ranks) * ChunkLayout::bytes(ranks, tuning);
}

ShmBoard::ShmBoard(std::shared_ptr<Region> region, int rank, int ranks, const ShmTuning& tuning,
                   std::vector<Doorbell*> doorbells)
    : region_(std::move(region)),
      rank_(rank),
      ranks_(ranks),
      tuning_(tuning),
      doorbells_(std::move(doorbells)),
      memory_bytes_(ChunkLayout::bytes(ranks, tuning)),
      counters_(region_->at<Counter>(sizeof(Header))),
      memories_(region_->data() + memories_begin(ranks)) {
  for (auto& seen : seen_) seen.resize(static_cast<std::size_t>(ranks));
}

void ShmBoard::break_up() noexcept {
  region_->at<Header>(0)->broken.store(1);
  ring_peers();
}

}  // namespace kolo
