#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>

#include "ops/host/doorbell.h"
#include "ops/host/region.h"

namespace kolo {

/// Both counters only grow; what is between them is in the ring. The writer moves `written`, the reader `read`. Its
/// bytes follow.
struct Ring {
  alignas(64) std::atomic<std::uint64_t> written;
  alignas(64) std::atomic<std::uint64_t> read;
};

/// A ring of bytes in a region, as its writer or its reader has it: the one rings the other's doorbell.
struct RingEnd {
  std::shared_ptr<Region> region;
  Ring* ring = nullptr;
  std::span<std::byte> bytes;
  Doorbell* peer = nullptr;

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

}  // namespace kolo
