#include "ops/local/board.h"

#include <thread>
#include <utility>

namespace kolo {

LocalBoard::LocalBoard(int ranks, std::vector<Doorbell*> doorbells)
    : ranks_(ranks), doorbells_(std::move(doorbells)), inside_(static_cast<std::size_t>(ranks)) {
  for (Slot& slot : slots_) slot.shown.resize(static_cast<std::size_t>(ranks));
}

bool LocalBoard::show(std::uint64_t operation, int rank, const Bucket& bucket) {
  Slot& mine = slot(operation);
  const std::uint64_t before = target(operation) - static_cast<std::uint64_t>(ranks_);
  if (mine.left.load() < before) return false;
  mine.shown[static_cast<std::size_t>(rank)] = {&bucket, bucket.token};
  if (mine.arrived.fetch_add(1) + 1 == target(operation)) ring_all();
  return true;
}

void LocalBoard::leave(std::uint64_t operation) {
  if (slot(operation).left.fetch_add(1) + 1 == target(operation)) ring_all();
}

bool LocalBoard::enter(int rank) {
  inside_[static_cast<std::size_t>(rank)].flag.store(true);
  if (!broken_.load()) return true;
  exit(rank);
  return false;
}

void LocalBoard::break_up() noexcept {
  broken_.store(true);
  for (const Inside& rank : inside_) {
    while (rank.flag.load()) std::this_thread::yield();
  }
  ring_all();
}

void LocalBoard::ring_all() {
  for (Doorbell* doorbell : doorbells_) doorbell->ring();
}

}  // namespace kolo
