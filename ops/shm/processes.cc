#include "ops/shm/processes.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "ops/host/mappings.h"
#include "ops/host/process_memory.h"
#include "ops/host/region.h"
#include "ops/shm/backend.h"

namespace kolo {
namespace {

/// A page full of a word, by which ranks try whether they can attach each other's memory.
class ProbePage final {
 public:
  /// `xpmem`: null: there is none.
  ProbePage(const Xpmem* xpmem, std::uint64_t word) {
    if (!xpmem) return;
    const auto bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    try {
      memory_ = heap_region(bytes);
      std::ranges::fill(std::span(memory_->at<std::uint64_t>(0), bytes / sizeof(word)), word);
      shown_ = xpmem->show(memory_->data(), bytes);
    } catch (const Error&) {  // the others see that there is none
    }
  }
  Xpmem::Id id() const { return shown_.id; }

  static bool is_attached(const Xpmem& xpmem, Xpmem::Id id, std::uint64_t word) {
    if (id == 0) return false;
    const auto bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    try {
      const auto page = xpmem.attach(id, bytes);
      const std::span words(reinterpret_cast<const std::uint64_t*>(page.get()), bytes / sizeof(word));
      return std::ranges::all_of(words, [=](std::uint64_t one) { return one == word; });
    } catch (const Error&) {
      return false;
    }
  }

 private:
  std::shared_ptr<Region> memory_;
  Xpmem::Shown shown_;  // ends before the memory
};

/// Each piece is a mapping without a name, which peers open through this process's descriptor; or memory of the
/// program, which they attach.
class ProcessMemory final : public ShmMemory {
 public:
  /// The ranks of the node, which tell each other. Collective.
  ProcessMemory(Gathering& ranks, std::shared_ptr<const Xpmem> xpmem) : peers_(static_cast<std::size_t>(ranks.size())) {
    const ProbePage page(xpmem.get(), probe_);
    const auto probes = ranks.all_values(Probe{getpid(), reinterpret_cast<std::uintptr_t>(&probe_), probe_, page.id()});
    Reaches mine{true, xpmem != nullptr};
    for (std::size_t rank = 0; rank < peers_.size(); ++rank) {
      const Probe& probe = probes[rank];
      peers_[rank].pid = probe.pid;
      std::uint64_t found = 0;
      mine.reads &=
          read_process(probe.pid, probe.address, std::as_writable_bytes(std::span(&found, 1))) && found == probe.value;
      mine.attaches = mine.attaches && ProbePage::is_attached(*xpmem, probe.xpmem, probe.value);
    }
    const auto all = ranks.all_values(mine);  // after which nobody needs the page
    reads_ = std::ranges::all_of(all, &Reaches::reads);
    if (std::ranges::all_of(all, &Reaches::attaches)) xpmem_ = std::move(xpmem);
  }

  std::shared_ptr<std::byte> map(int rank, const PeerAddress& address) override {
    auto& mapped = peers_[static_cast<std::size_t>(rank)].in_use;
    auto piece = mapped[address.piece].lock();
    if (!piece) {
      std::erase_if(mapped, [](const auto& entry) { return entry.second.expired(); });
      piece = open(rank, address);
      mapped[address.piece] = piece;
    }
    std::byte* const data = piece.get() + address.offset;
    return {std::move(piece), data};
  }
  std::shared_ptr<std::byte> map_again(int rank, const PeerAddress& address) override {
    auto& piece = peers_[static_cast<std::size_t>(rank)].mapped[address.piece];
    if (!piece) {
      PeerAddress whole = address;
      whole.offset = 0;
      piece = map(rank, whole);
    }
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
    std::map<std::uint64_t, std::weak_ptr<std::byte>> in_use;    // by the number of the piece
    std::map<std::uint64_t, std::shared_ptr<std::byte>> mapped;  // those that map_again() remembers
  };

  std::shared_ptr<std::byte> open(int rank, const PeerAddress& address) const {
    if (address.xpmem != 0) return xpmem_->attach(address.xpmem, address.piece_bytes);
    auto region = SharedRegion::open(peers_[static_cast<std::size_t>(rank)].pid, address.descriptor, address.file,
                                     address.piece_bytes);
    region->close_descriptor();
    std::byte* const data = region->data();
    return {std::move(region), data};
  }

  Piece make_piece(std::size_t bytes, std::uint64_t number) override {
    auto region = SharedRegion::create(bytes);
    std::byte* const data = region->data();
    const int descriptor = region->descriptor();
    const std::uint32_t file = region->file();
    return {{std::move(region), data}, number, bytes, descriptor, file};
  }
  /// By XPMEM, or if that has no more to give, as without it.
  Piece adopt_piece(std::byte* begin, std::size_t bytes, std::uint64_t number) override {
    if (xpmem_) {
      check_adoptable(begin, bytes, Adopted::kept);
      try {
        const auto shown = xpmem_->show(begin, bytes);
        return {.begin = shown.data, .number = number, .bytes = bytes, .xpmem = shown.id};
      } catch (const Error&) {
      }
    }
    auto region = SharedRegion::adopt(begin, bytes);
    const int descriptor = region->descriptor();
    const std::uint32_t file = region->file();
    return {{std::move(region), begin}, number, bytes, descriptor, file};
  }

  /// A word by which a rank sees that it reads the right process, or has attached its page.
  struct Probe {
    int pid;
    std::uint64_t address;
    std::uint64_t value;
    Xpmem::Id xpmem;
  };
  /// Whether a rank can do so with every rank.
  struct Reaches {
    bool reads, attaches;
  };

  const std::uint64_t probe_ = std::random_device()();
  std::vector<Peer> peers_;
  bool reads_ = false;                  // every rank every other one
  std::shared_ptr<const Xpmem> xpmem_;  // null: not every rank can attach what every other one shows
};

}  // namespace

std::unique_ptr<Backend> shm_process_backend(Gathering& ranks, std::span<Doorbell> doorbells,
                                             const std::function<void(const std::string&)>& report,
                                             std::shared_ptr<const ShmKnown> known, const ShmTuning* tuning,
                                             std::shared_ptr<const Xpmem> xpmem) {
  GroupInfo world{0, "world", {}, ranks.rank()};
  world.ranks.resize(static_cast<std::size_t>(ranks.size()));
  std::iota(world.ranks.begin(), world.ranks.end(), 0);
  const ShmTuning agreed = ranks.all_values(tuning ? *tuning : tuning_for_machine(ranks.size())).front();
  auto backend = shm_backend(
      {std::make_shared<ProcessMemory>(ranks, std::move(xpmem)), doorbells, agreed, std::move(known), report}, world);
  const bool serves = introduce_all(ranks, *backend, [&](const std::string& problem) {
    report(fmt::format("no shared memory for group world: {}; its tensors travel over MPI", problem));
  });
  return serves ? std::move(backend) : nullptr;
}

}  // namespace kolo
