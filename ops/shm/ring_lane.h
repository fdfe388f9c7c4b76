#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include <kolo/backend.h>

#include "ops/host/ring.h"
#include "ops/shm/bulk_ring.h"
#include "ops/shm/reach.h"
#include "ops/shm/sends.h"

namespace kolo {

/// Both directions between two ranks that share memory.
class RingLane final : public ByteLane {
 public:
  struct Way {
    RingEnd ring;  // it keeps the region in which all this lies
    BulkRing bulk;
    Showing& showing;  ///< what its sender shows
  };

  /// `peer`: its place among those that share the rings.
  RingLane(Way out, Way in, std::shared_ptr<const Reach> reach, std::shared_ptr<const ShmKnown> known, int peer)
      : out_(std::move(out)),
        in_(std::move(in)),
        reach_(reach),
        sends_(std::move(reach), std::move(known)),
        peer_(peer) {}

  std::size_t write(std::span<const std::byte> bytes) override { return out_.ring.write(bytes); }
  std::size_t read(std::span<std::byte> bytes) override { return in_.ring.read(bytes); }
  bool pending() const override {
    return in_.ring.ring->written.load() != in_.ring.ring->read.load(std::memory_order_relaxed);
  }
  bool has_bulk(std::size_t bytes) override { return bytes >= ShmSends::large && out_.bulk.reserve(); }
  std::size_t write_bulk(const std::byte* data, std::size_t left) override { return out_.bulk.write(data, left); }
  std::size_t read_bulk(std::byte* data, std::size_t left, std::size_t all) override {
    return in_.bulk.read(data, left, all);
  }
  bool pending_bulk(std::size_t left) const override { return in_.bulk.pending(left); }
  bool needs_polling() const override { return false; }
  void listen(bool waits) override { in_.ring.ring->deaf.store(waits ? 0 : 1); }

  std::optional<LaneAddress> show(std::span<const std::byte> bytes) override { return sends_.begin(bytes); }
  void arrived(std::span<const std::byte> bytes) override { sends_.end(bytes); }
  void given_up(std::span<const std::byte> bytes) override { sends_.give_up(bytes); }
  void withdraw() noexcept override { reach_->withdraw(out_.showing); }
  std::uint64_t withdrawn() const override { return in_.showing.withdrawn.load(); }
  Fetched fetch(const LaneAddress& address, std::size_t offset, std::span<std::byte> to, std::uint64_t heard) override {
    return reach_->fetch(peer_, in_.showing, address, offset, to, heard);
  }

 private:
  Way out_, in_;
  const std::shared_ptr<const Reach> reach_;
  ShmSends sends_;
  const int peer_;
};

}  // namespace kolo
