#include "ops/shm/pairs.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <numeric>
#include <utility>
#include <vector>

#include "ops/host/region.h"

namespace kolo {
namespace {

constexpr std::size_t all_rings = 16 << 20, smallest_ring = 4 << 10, largest_ring = 64 << 10;

/// Both counters only grow; what is between them is in the ring. The writer moves `written`, the reader `read`.
struct Ring {
  alignas(64) std::atomic<std::uint64_t> written;
  alignas(64) std::atomic<std::uint64_t> read;
  // the bytes follow
};

std::size_t ring_bytes(int ranks) {
  const auto pairs = static_cast<std::size_t>(ranks) * static_cast<std::size_t>(ranks);
  return std::clamp(all_rings / pairs / 64 * 64, smallest_ring, largest_ring);
}

/// One direction of a pair, as one of the two has it. What is sent goes in the order in which both start it, so each
/// operation takes a number, and moves bytes when its number comes.
struct Lane {
  std::shared_ptr<Region> region;  // of the ring
  Ring* ring = nullptr;
  std::span<std::byte> bytes;
  Doorbell* peer = nullptr;
  std::uint64_t started = 0, complete = 0;  // operations

  /// The part of the ring that begins at a counter's value, and ends at its end or after `most` bytes.
  std::span<std::byte> from(std::uint64_t position, std::size_t most) const {
    const std::size_t offset = position % bytes.size();
    return bytes.subspan(offset, std::min(most, bytes.size() - offset));
  }

  /// Writes what fits of `data`; returns how much.
  std::size_t write(std::span<const std::byte> data) const {
    const std::uint64_t written = ring->written.load(std::memory_order_relaxed);
    const std::size_t room = bytes.size() - (written - ring->read.load());
    const auto place = from(written, std::min(room, data.size()));
    if (place.empty()) return 0;
    std::memcpy(place.data(), data.data(), place.size());
    ring->written.store(written + place.size());
    if (peer) peer->ring();
    return place.size();
  }

  /// Reads what there is of `data`; returns how much.
  std::size_t read(std::span<std::byte> data) const {
    const std::uint64_t read = ring->read.load(std::memory_order_relaxed);
    const auto place = from(read, std::min<std::size_t>(ring->written.load() - read, data.size()));
    if (place.empty()) return 0;
    std::memcpy(data.data(), place.data(), place.size());
    ring->read.store(read + place.size());
    if (peer) peer->ring();
    return place.size();
  }
};

class PairOperation final : public Operation {
 public:
  PairOperation(std::shared_ptr<Lane> lane, bool sends, const Bucket& bucket)
      : lane_(std::move(lane)), sends_(sends), bucket_(bucket), number_(lane_->started++) {}

  bool step() override {
    moved_ = false;
    if (complete_ || lane_->complete != number_) return complete_;
    for (; tensor_ < bucket_.tensors.size(); ++tensor_, done_ = 0) {
      const BucketTensor& both = bucket_.tensors[tensor_];
      const Tensor& side = sends_ ? both.in : both.out;
      while (done_ < side.bytes()) {
        const std::span<std::byte> rest(static_cast<std::byte*>(side.data) + done_, side.bytes() - done_);
        const std::size_t count = sends_ ? lane_->write(rest) : lane_->read(rest);
        if (count == 0) return false;
        moved_ = true;
        done_ += count;
      }
    }
    ++lane_->complete;
    return complete_ = true;
  }
  bool needs_polling() const override { return false; }
  bool moved() const override { return moved_; }

 private:
  const std::shared_ptr<Lane> lane_;
  const bool sends_;
  const Bucket& bucket_;
  const std::uint64_t number_;
  std::size_t tensor_ = 0, done_ = 0;  // bytes of that tensor
  bool complete_ = false, moved_ = false;
};

/// Of one pair.
class PairBackend final : public Backend {
 public:
  PairBackend(Lane out, Lane in, int rank)
      : out_(std::make_shared<Lane>(std::move(out))), in_(std::make_shared<Lane>(std::move(in))), rank_(rank) {}
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

class PairsBackend final : public Backend {
 public:
  PairsBackend(std::shared_ptr<Region> region, int ranks, std::span<Doorbell> doorbells)
      : region_(std::move(region)), ranks_(static_cast<std::size_t>(ranks)), doorbells_(doorbells) {}
  std::string_view name() const override { return "shm"; }
  bool supports(const Signature&) const override { return false; }
  std::unique_ptr<Operation> start(const Bucket&) override { return nullptr; }
  std::unique_ptr<Backend> for_group(const GroupInfo& group) override {
    if (!group.is_pair()) return nullptr;
    const auto mine = static_cast<std::size_t>(group.ranks[static_cast<std::size_t>(group.rank)]);
    const auto other = static_cast<std::size_t>(group.ranks[group.rank == 0 ? 1 : 0]);
    return std::make_unique<PairBackend>(lane(mine, other, other), lane(other, mine, other), group.rank);
  }
  void abandon() noexcept override {}

 private:
  Lane lane(std::size_t from, std::size_t to, std::size_t peer) const {
    const std::size_t bytes = ring_bytes(static_cast<int>(ranks_));
    const std::size_t offset = (from * ranks_ + to) * (sizeof(Ring) + bytes);
    return {region_,
            region_->at<Ring>(offset),
            {region_->at<std::byte>(offset + sizeof(Ring)), bytes},
            doorbells_.empty() ? nullptr : &doorbells_[peer]};
  }

  const std::shared_ptr<Region> region_;
  const std::size_t ranks_;
  const std::span<Doorbell> doorbells_;
};

}  // namespace

std::unique_ptr<Backend> shm_pairs_backend(Gathering& ranks, std::span<Doorbell> doorbells) {
  const int size = ranks.size();
  std::vector<int> all(static_cast<std::size_t>(size));
  std::iota(all.begin(), all.end(), 0);
  const std::size_t pairs = all.size() * all.size();
  auto region = shared_region(ranks, all, pairs * (sizeof(Ring) + ring_bytes(size)));
  if (!region) return nullptr;
  return std::make_unique<PairsBackend>(std::move(region), size, doorbells);
}

}  // namespace kolo
