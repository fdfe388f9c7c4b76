// Ranks that are threads share heap.

#include <numeric>

#include "ops/host/region.h"
#include "ops/shm/backend.h"
#include "ops/shm/memory.h"

namespace kolo {
namespace {

/// A piece's number is its address, which is valid in every thread. One for all ranks: they differ in nothing.
class ThreadMemory final : public ShmMemory {
 public:
  std::shared_ptr<std::byte> map(int, const PeerAddress& address) override {
    auto piece = piece_at(reinterpret_cast<const std::byte*>(address.piece));
    if (!piece) throw Error(ErrorCode::backend, "the memory of another rank is gone");
    std::byte* const data = piece.get() + address.offset;
    return {std::move(piece), data};
  }

 private:
  Piece make_piece(std::size_t bytes, std::uint64_t) override {
    auto region = heap_region(bytes);
    std::byte* const data = region->data();
    return {{std::move(region), data}, reinterpret_cast<std::uintptr_t>(data), bytes, -1};
  }
};

}  // namespace

std::vector<std::unique_ptr<Backend>> shm_thread_backends(int ranks, std::span<Doorbell> doorbells,
                                                          const ShmTuning& tuning) {
  const ShmWorld shared{std::make_shared<ThreadMemory>(), doorbells, tuning, {}};
  GroupInfo world{0, "world", std::vector<int>(static_cast<std::size_t>(ranks)), 0};
  std::iota(world.ranks.begin(), world.ranks.end(), 0);
  std::vector<std::unique_ptr<Backend>> backends;
  std::vector<Introduction> members;
  for (; world.rank < ranks; ++world.rank) {
    backends.push_back(shm_backend(shared, world));
    members.push_back(backends.back()->introduction());
  }
  for (const auto& backend : backends) {
    if (!backend->introduce(members))
      throw Error(ErrorCode::backend, "there is not enough memory for ranks in threads");
  }
  return backends;
}

}  // namespace kolo
