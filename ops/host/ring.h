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
/// bytes follow. Each rings the other's doorbell only for what it waits for: the writer says that it waits for room;
/// the reader may say that it waits for nothing.
struct Ring {
  alignas(64) std::atomic<std::uint64_t> written;
  std::atomic<std::uint32_t> starved;  // by the writer, until the reader has rung
  alignas(64) std::atomic<std::uint64_t> read;
  std::atomic<std::uint32_t> deaf;  // by the reader
};

/// A ring of bytes in a region, as its writer or its reader has it. What one stores before it looks at the other's
/// counter, and the other stores before it looks whether to ring, is sequentially consistent: so one of them sees it.
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
    const auto place_now = [&] {
      return from(written, std::min<std::size_t>(bytes.size() - (written - ring->read.load()), data.size()));
    };
    auto place = place_now();
    if (place.empty() && !data.empty()) {
      ring->starved.store(1);
      place = place_now();
    }
    if (place.empty()) return 0;
    std::memcpy(place.data(), data.data(), place.size());
    ring->written.store(written + place.size());
    if (peer && ring->deaf.load() == 0) peer->ring();
    return place.size();
  }

  /// Whether all that was written has been read. If not, the reader will ring.
  bool drained() const {
    const auto is = [&] { return ring->read.load() == ring->written.load(std::memory_order_relaxed); };
    if (is()) return true;
    ring->starved.store(1);
    return is();
  }

  /// Reads what there is of `data`; returns how much.
  std::size_t read(std::span<std::byte> data) const {
    const std::uint64_t read = ring->read.load(std::memory_order_relaxed);
    const auto place = from(read, std::min<std::size_t>(ring->written.load() - read, data.size()));
    if (place.empty()) return 0;
    std::memcpy(data.data(), place.data(), place.size());
    ring->read.store(read + place.size());
    if (ring->starved.load() != 0 && ring->starved.exchange(0) != 0 && peer) peer->ring();
    return place.size();
  }
};

}  // namespace kolo
