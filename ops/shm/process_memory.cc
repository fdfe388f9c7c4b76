#include "ops/shm/process_memory.h"

#include <map>
#include <utility>

#include <kolo/error.h>

#include "ops/host/region.h"

namespace kolo {
namespace {

class ProcessMemory final : public ShmMemory {
 public:
  explicit ProcessMemory(std::vector<int> pids) : peers_(pids.size()) {
    for (std::size_t rank = 0; rank < pids.size(); ++rank) peers_[rank].pid = pids[rank];
  }

  std::shared_ptr<std::byte> map(int rank, const PeerAddress& address) override {
    auto& region = peers_[static_cast<std::size_t>(rank)].mapped[address.piece];
    if (!region) {
      region = SharedRegion::open(peers_[static_cast<std::size_t>(rank)].pid, address.descriptor, address.file,
                                  address.piece_bytes);
      region->close_descriptor();
    }
    return {region, region->data() + address.offset};
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
    std::map<std::uint64_t, std::shared_ptr<SharedRegion>> mapped;  // by the number of the piece
  };

  Piece make_piece(std::size_t bytes, std::uint64_t number) override {
    try {
      auto region = SharedRegion::create(bytes);
      std::byte* const data = region->data();
      const int descriptor = region->descriptor();
      const std::uint32_t file = region->file();
      return {{std::move(region), data}, number, bytes, descriptor, file};
    } catch (const Error&) {
      return {};  // too many descriptors, or too little memory: the caller tries ordinary memory
    }
  }

  std::vector<Peer> peers_;
};

}  // namespace

std::shared_ptr<ShmMemory> shm_process_memory(std::vector<int> pids) {
  return std::make_shared<ProcessMemory>(std::move(pids));
}

}  // namespace kolo
