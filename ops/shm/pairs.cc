#include "ops/shm/pairs.h"

#include <algorithm>
#include <array>
#include <mutex>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "ops/host/ring.h"
#include "ops/shm/bulk_ring.h"
#include "ops/shm/reach.h"
#include "ops/shm/ring_lane.h"
#include "ops/shm/sends.h"

namespace kolo {
namespace {

constexpr std::size_t all_rings = 16 << 20, smallest_ring = 4 << 10, largest_ring = 64 << 10;

std::size_t ring_bytes(std::size_t ranks) {
  return std::clamp(all_rings / (ranks * ranks) / 64 * 64, smallest_ring, largest_ring);
}

/// One direction of a pair, as one of the two has it. What is sent goes in the order in which both start it, so each
/// operation takes a number, and moves bytes when its number comes.
struct Lane {
  Lane(RingEnd small, BulkRing large, std::shared_ptr<const Reach> reach, std::shared_ptr<const ShmKnown> known,
       int sender, Showing& shown)
      : ring(std::move(small)),
        bulk(std::move(large)),
        reach(reach),
        sends(std::move(reach), std::move(known)),
        sender(sender),
        showing(shown) {}
  RingEnd ring;
  BulkRing bulk;
  std::shared_ptr<const Reach> reach;
  ShmSends sends;
  int sender;  // its place among those that share the rings
  Showing& showing;
  std::uint64_t started = 0, complete = 0;  // operations
};

/// Before the bytes of a large tensor the sender says how they come. If the receiver is to copy them, it takes the last
/// byte of that out of the ring when it has done so: then the sender's memory is its own again. Or it refuses, and the
/// sender says once more how they come.
struct Announcement {
  enum class How : std::uint8_t { ring, bulk, copied };
  LaneAddress address{};  ///< of what is to be copied
  How how = How::ring;
  std::array<std::byte, 15> rest{};
};
static_assert(sizeof(Announcement) == 64);

class PairOperation final : public Operation {
 public:
  PairOperation(std::shared_ptr<Lane> lane, bool sends, const Bucket& bucket)
      : lane_(std::move(lane)), sends_(sends), bucket_(bucket), number_(lane_->started++) {}
  PairOperation(const PairOperation&) = delete;
  PairOperation& operator=(const PairOperation&) = delete;
  ~PairOperation() override {
    if (sends_ && stage_ == Stage::copied) lane_->reach->withdraw(lane_->showing);
  }

  bool step() override {
    moved_ = false;
    if (complete_ || lane_->complete != number_) return complete_;
    for (; tensor_ < bucket_.tensors.size(); ++tensor_, done_ = 0, stage_ = Stage::begins) {
      const BucketTensor& both = bucket_.tensors[tensor_];
      const Tensor& side = sends_ ? both.in : both.out;
      const std::span<std::byte> bytes(static_cast<std::byte*>(side.data), side.bytes());
      if (!(sends_ ? send(bytes) : receive(bytes))) return false;
    }
    ++lane_->complete;
    return complete_ = true;
  }
  bool needs_polling() const override { return false; }
  bool moved() const override { return moved_; }
  const char* method() const override { return method_; }

 private:
  using How = Announcement::How;
  enum class Stage : std::uint8_t { begins, announces, ring, bulk, copied, ends };  // copied: by the receiver
  static constexpr std::size_t piece = 1 << 20;  // before it is another operation's turn

  static Stage stage_of(How how) {
    return how == How::copied ? Stage::copied : how == How::bulk ? Stage::bulk : Stage::ring;
  }

  /// Moves what is left of `bytes` through the ring; whether all has gone.
  bool move(std::span<std::byte> bytes) {
    while (done_ < bytes.size()) {
      const auto rest = bytes.subspan(done_);
      const std::size_t count = sends_ ? lane_->ring.write(rest) : lane_->ring.read(rest);
      if (count == 0) return false;
      moved_ = true;
      done_ += count;
    }
    return true;
  }
  /// The same through the large ring, piece by piece, and no more than one `piece` at a time.
  bool move_bulk(std::span<std::byte> bytes) {
    for (std::size_t sum = 0; done_ < bytes.size() && sum < piece;) {
      const auto rest = bytes.subspan(done_);
      const std::size_t count = sends_ ? lane_->bulk.write(rest.data(), rest.size())
                                       : lane_->bulk.read(rest.data(), rest.size(), bytes.size());
      if (count == 0) return false;
      moved_ = true;
      done_ += count;
      sum += count;
    }
    return done_ == bytes.size();
  }
  /// The same of the announcement, up to its byte `end`.
  bool move_announcement(std::size_t end) {
    return move(std::as_writable_bytes(std::span(&announcement_, 1)).first(end));
  }

  bool send(std::span<std::byte> bytes) {
    if (bytes.size() < ShmSends::large) return move(bytes);
    if (stage_ == Stage::begins) {
      const auto address = refused_ ? std::nullopt : lane_->sends.begin(bytes);
      announcement_.address = address.value_or(LaneAddress{});
      announcement_.how = How::copied;
      if (!address) announcement_.how = lane_->bulk.reserve() ? How::bulk : How::ring;
      method_ = address ? "copied" : "ring";
      done_ = 0;
      stage_ = Stage::announces;
    }
    if (stage_ == Stage::announces) {
      if (!move_announcement(sizeof(Announcement))) return false;
      done_ = 0;
      stage_ = stage_of(announcement_.how);
    }
    if (stage_ == Stage::copied) {
      if (!lane_->ring.drained()) return false;
      if (lane_->showing.refused.exchange(0) != 0) {
        lane_->sends.give_up(bytes);
        refused_ = true;
        stage_ = Stage::begins;
        return send(bytes);
      }
    } else if (!(stage_ == Stage::bulk ? move_bulk(bytes) : move(bytes))) {
      return false;
    }
    refused_ = false;
    lane_->sends.end(bytes);
    return true;
  }

  bool receive(std::span<std::byte> bytes) {
    if (bytes.size() < ShmSends::large) return move(bytes);
    constexpr std::size_t last = sizeof(Announcement) - 1;
    if (stage_ == Stage::begins || stage_ == Stage::announces) {
      if (!move_announcement(last)) return false;
      if (announcement_.how != How::copied && !move_announcement(sizeof(Announcement))) return false;
      done_ = 0;
      stage_ = stage_of(announcement_.how);
    }
    if (stage_ == Stage::ring) return move(bytes);
    if (stage_ == Stage::bulk) return move_bulk(bytes);
    if (stage_ == Stage::copied && !copy(bytes)) return false;
    if (!move_announcement(sizeof(Announcement))) return false;
    if (!refused_) return true;
    refused_ = false;
    done_ = 0;
    stage_ = Stage::begins;
    return receive(bytes);
  }

  /// A piece of them. Whether that was the last; also if they cannot be copied.
  bool copy(std::span<std::byte> bytes) {
    const auto part = bytes.subspan(done_, std::min(piece, bytes.size() - done_));
    const auto fetched = lane_->reach->fetch(lane_->sender, lane_->showing, announcement_.address, done_, part, 0);
    if (fetched == ByteLane::Fetched::withdrawn)
      throw Error(ErrorCode::aborted, "the sender has left, or freed what it sends");
    refused_ = fetched == ByteLane::Fetched::impossible;
    moved_ = true;
    done_ += part.size();
    if (done_ < bytes.size() && !refused_) return false;
    if (refused_) lane_->showing.refused.store(1);
    method_ = refused_ ? "ring" : "copied";
    stage_ = Stage::ends;
    done_ = sizeof(Announcement) - 1;
    return true;
  }

  const std::shared_ptr<Lane> lane_;
  const bool sends_;
  const Bucket& bucket_;
  const std::uint64_t number_;
  std::size_t tensor_ = 0, done_ = 0;  // bytes of that tensor, or of its announcement
  Stage stage_ = Stage::begins;
  Announcement announcement_;
  bool refused_ = false;  // the receiver cannot copy this tensor
  const char* method_ = "ring";
  bool complete_ = false, moved_ = false;
};

/// Of one pair.
class PairBackend final : public Backend {
 public:
  PairBackend(std::shared_ptr<Lane> out, std::shared_ptr<Lane> in, int rank)
      : out_(std::move(out)), in_(std::move(in)), rank_(rank) {}
  std::string_view name() const override { return "shm"; }
  bool supports(const Signature& signature) const override {
    return signature.kind == OpKind::send_recv && signature.device == DeviceKind::cpu;
  }
  std::unique_ptr<Operation> start(const Bucket& bucket) override {
    const bool sends = bucket.signature.root == rank_;
    return std::make_unique<PairOperation>(sends ? out_ : in_, sends, bucket);
  }
  std::unique_ptr<Backend> for_group(const GroupInfo&) override { return nullptr; }
  void abandon() noexcept override {}

 private:
  std::shared_ptr<Lane> out_, in_;
  const int rank_;
};

/// The rings of ranks that share memory: for each ordered pair of them one for operations of that pair, and one for
/// its lane, each with a large one and a Showing. Those of threads have no memory before the first is asked for.
class Rings final {
 public:
  Rings(std::shared_ptr<Region> region, std::shared_ptr<Region> bulk, std::size_t ranks, std::span<Doorbell> doorbells)
      : region_(std::move(region)), bulk_(std::move(bulk)), ranks_(ranks), doorbells_(doorbells) {}

  static std::size_t bytes(std::size_t ranks) {
    return ranks * ranks * uses * (sizeof(Ring) + ring_bytes(ranks) + sizeof(Showing));
  }
  static std::size_t bulk_bytes(std::size_t ranks) { return ranks * ranks * uses * BulkRing::bytes(ranks); }

  RingEnd ring(std::size_t use, std::size_t from, std::size_t to, std::size_t peer) {
    make();
    const std::size_t capacity = ring_bytes(ranks_);
    const std::size_t offset = ((use * ranks_ + from) * ranks_ + to) * (sizeof(Ring) + capacity);
    return {region_,
            region_->at<Ring>(offset),
            {region_->at<std::byte>(offset + sizeof(Ring)), capacity},
            doorbells_.empty() ? nullptr : &doorbells_[peer]};
  }
  BulkRing bulk(std::size_t use, std::size_t from, std::size_t to, std::size_t peer) {
    make();
    const std::size_t bytes = bulk_ ? BulkRing::bytes(ranks_) : 0;
    return {bulk_, ((use * ranks_ + from) * ranks_ + to) * bytes, bytes,
            doorbells_.empty() ? nullptr : &doorbells_[peer]};
  }
  /// What `from` shows `to`.
  Showing& showing(std::size_t use, std::size_t from, std::size_t to) {
    make();
    const std::size_t rings = uses * ranks_ * ranks_ * (sizeof(Ring) + ring_bytes(ranks_));
    return *region_->at<Showing>(rings + ((use * ranks_ + from) * ranks_ + to) * sizeof(Showing));
  }

 private:
  static constexpr std::size_t uses = 2;

  void make() {
    std::call_once(made_, [&] {
      if (region_) return;
      region_ = heap_region(bytes(ranks_));
      if (bulk_bytes(ranks_) > 0) bulk_ = heap_region(bulk_bytes(ranks_));
    });
  }

  std::once_flag made_;
  std::shared_ptr<Region> region_, bulk_;  // the large rings are reserved one by one
  const std::size_t ranks_;
  const std::span<Doorbell> doorbells_;
};

class PairsBackend final : public Backend {
 public:
  /// `places`: by rank, among those that share the rings; -1 elsewhere.
  PairsBackend(std::shared_ptr<Rings> rings, std::shared_ptr<const Reach> reach, std::shared_ptr<const ShmKnown> known,
               std::vector<int> places, int rank)
      : rings_(std::move(rings)),
        reach_(std::move(reach)),
        known_(std::move(known)),
        places_(std::move(places)),
        rank_(rank) {}
  std::string_view name() const override { return "shm"; }
  bool supports(const Signature&) const override { return false; }
  std::unique_ptr<Operation> start(const Bucket&) override { return nullptr; }
  std::unique_ptr<Backend> for_group(const GroupInfo& group) override {
    const int other = group.is_pair() ? group.ranks[group.rank == 0 ? 1 : 0] : rank_;
    if (!shares(other)) return nullptr;
    const auto one_way = [&](RingEnd end, int from, int to) {
      return std::make_shared<Lane>(std::move(end), rings_->bulk(0, place(from), place(to), place(other)), reach_,
                                    known_, static_cast<int>(place(from)), rings_->showing(0, place(from), place(to)));
    };
    return std::make_unique<PairBackend>(one_way(out(0, other), rank_, other), one_way(in(0, other), other, rank_),
                                         group.rank);
  }
  std::unique_ptr<ByteLane> lane(int peer) override {
    if (!shares(peer)) return nullptr;
    const std::size_t me = place(rank_), other = place(peer);
    return std::make_unique<RingLane>(
        RingLane::Way{out(1, peer), rings_->bulk(1, me, other, other), rings_->showing(1, me, other)},
        RingLane::Way{in(1, peer), rings_->bulk(1, other, me, other), rings_->showing(1, other, me)}, reach_, known_,
        static_cast<int>(other));
  }
  void abandon() noexcept override {}

 private:
  bool shares(int rank) const { return rank != rank_ && places_[static_cast<std::size_t>(rank)] >= 0; }
  std::size_t place(int rank) const { return static_cast<std::size_t>(places_[static_cast<std::size_t>(rank)]); }
  RingEnd out(std::size_t use, int peer) const { return rings_->ring(use, place(rank_), place(peer), place(peer)); }
  RingEnd in(std::size_t use, int peer) const { return rings_->ring(use, place(peer), place(rank_), place(peer)); }

  const std::shared_ptr<Rings> rings_;
  const std::shared_ptr<const Reach> reach_;
  const std::shared_ptr<const ShmKnown> known_;
  const std::vector<int> places_;
  const int rank_;
};

}  // namespace

std::unique_ptr<Backend> shm_pairs_backend(Gathering& ranks, std::span<const int> node_of,
                                           std::span<Doorbell> doorbells, std::shared_ptr<MemorySource> memory,
                                           std::shared_ptr<const ShmKnown> known) {
  const auto all = static_cast<std::size_t>(ranks.size());
  const auto node = [&](std::size_t rank) { return node_of.empty() ? 0 : node_of[rank]; };
  std::vector<int> places(all, -1), sharing;
  for (std::size_t rank = 0; rank < all; ++rank) {
    if (node(rank) != node(static_cast<std::size_t>(ranks.rank()))) continue;
    places[rank] = static_cast<int>(sharing.size());
    sharing.push_back(static_cast<int>(rank));
  }
  auto region = shared_region(ranks, sharing, Rings::bytes(sharing.size()));
  const std::size_t bulk_bytes = Rings::bulk_bytes(sharing.size());  // other nodes may have other numbers of ranks
  auto bulk = shared_region(ranks, sharing, std::max<std::size_t>(bulk_bytes, 1), Reserved::later);
  if (!region) return nullptr;
  auto reach = std::make_shared<Reach>(std::dynamic_pointer_cast<ShmMemory>(std::move(memory)));
  auto rings = std::make_shared<Rings>(std::move(region), std::move(bulk), sharing.size(), doorbells);
  return std::make_unique<PairsBackend>(std::move(rings), std::move(reach), std::move(known), std::move(places),
                                        ranks.rank());
}

std::vector<std::unique_ptr<Backend>> shm_thread_pairs_backends(int ranks, std::span<Doorbell> doorbells) {
  std::vector<int> places(static_cast<std::size_t>(ranks));
  std::iota(places.begin(), places.end(), 0);
  const auto rings = std::make_shared<Rings>(nullptr, nullptr, places.size(), doorbells);
  const auto reach = std::make_shared<Reach>();
  std::vector<std::unique_ptr<Backend>> backends;
  for (int rank = 0; rank < ranks; ++rank)
    backends.push_back(std::make_unique<PairsBackend>(rings, reach, nullptr, places, rank));
  return backends;
}

}  // namespace kolo
