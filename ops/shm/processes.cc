#include "ops/shm/processes.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "ops/host/process_memory.h"
#include "ops/host/region.h"
#include "ops/shm/backend.h"

namespace kolo {
namespace {

/// Each piece is a mapping without a name, which peers open through this process's descriptor.
class ProcessMemory final : public ShmMemory {
 public:
  /// The ranks of the node, which tell each other. Collective.
  explicit ProcessMemory(Gathering& ranks) : peers_(static_cast<std::size_t>(ranks.size())) {
    const Probe mine{getpid(), reinterpret_cast<std::uintptr_t>(&probe_), probe_};
    const auto probes = ranks.all_values(mine);
    bool reads = true;
    for (std::size_t rank = 0; rank < peers_.size(); ++rank) {
      peers_[rank].pid = probes[rank].pid;
      std::uint64_t found = 0;
      reads &= read_process(probes[rank].pid, probes[rank].address, std::as_writable_bytes(std::span(&found, 1))) &&
               found == probes[rank].value;
    }
    reads_ =
        std::ranges::all_of(ranks.all_values<std::uint8_t>(reads ? 1 : 0), [](std::uint8_t one) { return one != 0; });
  }

  std::shared_ptr<std::byte> map(int rank, const PeerAddress& address) override {
    auto& mapped = peers_[static_cast<std::size_t>(rank)].in_use;
    auto region = mapped[address.piece].lock();
    if (!region) {
      std::erase_if(mapped, [](const auto& entry) { return entry.second.expired(); });
      region = open(rank, address);
      mapped[address.piece] = region;
    }
    std::byte* const data = region->data() + address.offset;
    return {std::move(region), data};
  }
  std::shared_ptr<std::byte> map_again(int rank, const PeerAddress& address) override {
    auto& piece = peers_[static_cast<std::size_t>(rank)].mapped[address.piece];
    if (!piece) piece = map(rank, {address.piece, 0, address.piece_bytes, address.descriptor, address.file});
    return {piece, piece.get() + address.offset};
  }

  bool readable(std::span<const std::span<const std::byte>> ranges) const override {
    return reads_ && is_readable(ranges);
  }
  bool read(int rank, std::uint64_t address, std::span<std::byte> to) override {
    return read_process(peers_[static_cast<std::size_t>(rank)].pid, address, to);
  }

  void forget_released(int rank, std::uint64_t released) override {
    Peer& peer = peers_[static_cast<std::size_t>(rank)];
    if (std::exchange(peer.released, released) != released)
      peer.mapped.clear();  // what is still there is mapped again when it is needed
  }

 private:
  struct Peer {
    int pid = 0;
    std::uint64_t released = 0;
    std::map<std::uint64_t, std::weak_ptr<SharedRegion>> in_use;  // by the number of the piece
    std::map<std::uint64_t, std::shared_ptr<std::byte>> mapped;   // those that map_again() remembers
  };

  std::shared_ptr<SharedRegion> open(int rank, const PeerAddress& address) const {
    auto region = SharedRegion::open(peers_[static_cast<std::size_t>(rank)].pid, address.descriptor, address.file,
                                     address.piece_bytes);
    region->close_descriptor();
    return region;
  }

  Piece make_piece(std::size_t bytes, std::uint64_t number) override {
    auto region = SharedRegion::create(bytes);
    std::byte* const data = region->data();
    const int descriptor = region->descriptor();
    const std::uint32_t file = region->file();
    return {{std::move(region), data}, number, bytes, descriptor, file};
  }
  Piece adopt_piece(std::byte* begin, std::size_t bytes, std::uint64_t number) override {
    auto region = SharedRegion::adopt(begin, bytes);
    const int descriptor = region->descriptor();
    const std::uint32_t file = region->file();
    return {{std::move(region), begin}, number, bytes, descriptor, file};
  }

  /// A word by which a rank sees that it reads the right process.
  struct Probe {
    int pid;
    std::uint64_t address;
    std::uint64_t value;
  };

  const std::uint64_t probe_ = std::random_device()();
  std::vector<Peer> peers_;
  bool reads_ = false;  // every rank every other one
};

}  // namespace

std::unique_ptr<Backend> shm_process_backend(Gathering& ranks, std::span<Doorbell> doorbells,
                                             const std::function<void(const std::string&)>& report,
                                             std::shared_ptr<const ShmKnown> known, const ShmTuning* tuning) {
  GroupInfo world{0, "world", {}, ranks.rank()};
  world.ranks.resize(static_cast<std::size_t>(ranks.size()));
  std::iota(world.ranks.begin(), world.ranks.end(), 0);
  const ShmTuning agreed = ranks.all_values(tuning ? *tuning : tuning_for_machine(ranks.size())).front();
  auto backend =
      shm_backend({std::make_shared<ProcessMemory>(ranks), doorbells, agreed, std::move(known), report}, world);
  const bool serves = introduce_all(ranks, *backend, [&](const std::string& problem) {
    report(fmt::format("no shared memory for group world: {}; its tensors travel over MPI", problem));
  });
  return serves ? std::move(backend) : nullptr;
}

}  // namespace kolo
