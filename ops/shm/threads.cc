// Ranks that are threads share heap.

#include <unistd.h>

#include <numeric>

#include "ops/host/process_memory.h"
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
  bool readable(std::span<const std::span<const std::byte>> ranges) const override { return is_readable(ranges); }
  /// By the system, as between processes: a rank that leaves may free what another one is reading.
  bool read(int, std::uint64_t address, std::span<std::byte> to) override {
    return read_process(getpid(), address, to);
  }

 private:
  Piece make_piece(std::size_t bytes, std::uint64_t) override {
    auto region = heap_region(bytes);
    std::byte* const data = region->data();
    return {{std::move(region), data}, reinterpret_cast<std::uintptr_t>(data), bytes, -1};
  }
  Piece adopt_piece(std::byte* begin, std::size_t bytes, std::uint64_t) override {
    return {{std::shared_ptr<void>(), begin}, reinterpret_cast<std::uintptr_t>(begin), bytes, -1};
  }
};

}  // namespace

std::vector<std::unique_ptr<Backend>> shm_thread_backends(int ranks, std::span<Doorbell> doorbells,
                                                          const ShmTuning& tuning,
                                                          std::shared_ptr<const ShmKnown> known) {
  const ShmWorld shared{std::make_shared<ThreadMemory>(), doorbells, tuning, std::move(known), {}};
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
