// Ranks that are threads share heap: whoever comes first makes a group's region, the other members find it. It is kept
// until all have come: the first may be through with everything, and gone, by then.

#include <map>
#include <mutex>
#include <numeric>

#include "ops/shm/backend.h"
#include "ops/shm/memory.h"

namespace kolo {
namespace {

/// A piece's number is its address, which is valid in every thread.
class ThreadMemory final : public ShmMemory {
 public:
  std::shared_ptr<std::byte> map(int, const PeerAddress& address) override {
    return {std::shared_ptr<void>(), reinterpret_cast<std::byte*>(address.piece) + address.offset};
  }
  void forget_released(int, std::uint64_t) override {}

 private:
  Piece make_piece(std::size_t bytes, std::uint64_t) override {
    auto region = heap_region(bytes);
    std::byte* const data = region->data();
    return {{std::move(region), data}, reinterpret_cast<std::uintptr_t>(data), bytes, -1};
  }
};

class ThreadRegions final : public RegionSource {
 public:
  std::shared_ptr<Region> region_for(const GroupInfo& group, std::size_t bytes) override {
    const std::lock_guard lock(mutex_);
    Shared& shared = shared_[group.key()];
    if (!shared.region) shared.region = heap_region(bytes);
    auto region = shared.region;
    if (++shared.members == group.size()) shared_.erase(group.key());
    return region;
  }
  std::shared_ptr<ShmMemory> memory() override { return memory_; }
  void abandon() noexcept override {}

 private:
  struct Shared {
    std::shared_ptr<Region> region;
    int members = 0;  // that have it
  };

  std::mutex mutex_;
  std::map<GroupKey, Shared> shared_;
  const std::shared_ptr<ShmMemory> memory_ = std::make_shared<ThreadMemory>();  // one for all: they differ in nothing
};

}  // namespace

std::vector<std::unique_ptr<Backend>> shm_thread_backends(int ranks, std::span<Doorbell> doorbells,
                                                          const ShmTuning& tuning) {
  const auto regions = std::make_shared<ThreadRegions>();
  GroupInfo world{0, "world", std::vector<int>(static_cast<std::size_t>(ranks)), 0};
  std::iota(world.ranks.begin(), world.ranks.end(), 0);
  std::vector<std::unique_ptr<Backend>> backends;
  for (; world.rank < ranks; ++world.rank) backends.push_back(shm_backend(regions, world, doorbells, tuning));
  return backends;
}

}  // namespace kolo
