#include "ops/shm/board.h"

#include <utility>

namespace kolo {

std::size_t ShmBoard::bytes(int ranks, const ShmTuning& tuning) {
  return sizeof(Header) + ChunkLayout::bytes(ranks, tuning);
}

ShmBoard::ShmBoard(std::vector<std::shared_ptr<std::byte>> parts, int rank, const ShmTuning& tuning,
                   std::vector<Doorbell*> doorbells)
    : parts_(std::move(parts)), rank_(rank), tuning_(tuning), doorbells_(std::move(doorbells)) {
  for (auto& seen : seen_) seen.resize(parts_.size());
}

void ShmBoard::break_up() noexcept {
  header(0).broken.store(1);
  ring_peers();
}

}  // namespace kolo
