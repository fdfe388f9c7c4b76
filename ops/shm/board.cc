#include "ops/shm/board.h"

#include <utility>

namespace kolo {

std::size_t ShmBoard::bytes(int ranks, const ShmTuning& tuning) {
  return sizeof(Header) + ChunkLayout::bytes(ranks, tuning);
}

ShmBoard::ShmBoard(std::vector<std::shared_ptr<std::byte>> parts, int rank, const ShmTuning& tuning,
                   std::vector<Doorbell*> doorbells)
    : parts_(std::move(parts)),
      rank_(rank),
      tuning_(tuning),
      layout_(static_cast<int>(parts_.size()), tuning),
      doorbells_(std::move(doorbells)) {
  for (const auto& part : parts_) memory_.push_back(part.get() + sizeof(Header));
  for (auto& seen : seen_) seen.resize(parts_.size());
}

void ShmBoard::grow(std::vector<std::shared_ptr<std::byte>> memory, const ShmTuning& tuning) {
  grown_ = std::move(memory);
  memory_.clear();
  for (const auto& one : grown_) memory_.push_back(one.get());
  tuning_ = tuning;
  layout_ = ChunkLayout(ranks(), tuning);
}

void ShmBoard::break_up() noexcept {
  header(0).broken.store(1);
  ring_peers();
}

}  // namespace kolo
