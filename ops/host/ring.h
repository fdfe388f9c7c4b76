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

  /// Where the next bytes are written, at most `most`. Empty while there is no room for `least`: the reader will ring.
  std::span<std::byte> room(std::size_t most, std::size_t least) const {
    const std::uint64_t written = ring->written.load(std::memory_order_relaxed);
    const auto free_now = [&] { return static_cast<std::size_t>(bytes.size() - (written - ring->read.load())); };
    std::size_t free = free_now();
    if (free < least) {
      ring->starved.store(1);
      free = free_now();
    }
    return free < least ? std::span<std::byte>() : from(written, std::min(free, most));
  }
  /// They have been written there.
  void put(std::size_t count) const {
    ring->written.store(ring->written.load(std::memory_order_relaxed) + count);
    if (peer && ring->deaf.load() == 0) peer->ring();
  }
  /// Writes what fits of `data`; returns how much.
  std::size_t write(std::span<const std::byte> data) const {
    const auto place = room(data.size(), data.empty() ? 0 : 1);
    if (place.empty()) return 0;
    std::memcpy(place.data(), data.data(), place.size());
    put(place.size());
    return place.size();
  }

  /// Whether all that was written has been read. If not, the reader will ring.
  bool drained() const {
    const auto is = [&] { return ring->read.load() == ring->written.load(std::memory_order_relaxed); };
    if (is()) return true;
    ring->starved.store(1);
    return is();
  }

  /// The next bytes that have been written, at most `most`; none if there are fewer than `least`.
  std::span<const std::byte> there(std::size_t most, std::size_t least) const {
    const std::uint64_t read = ring->read.load(std::memory_order_relaxed);
    const auto count = static_cast<std::size_t>(ring->written.load() - read);
    return count < least ? std::span<const std::byte>() : from(read, std::min(count, most));
  }
  /// They have been read.
  void take(std::size_t count) const {
    ring->read.store(ring->read.load(std::memory_order_relaxed) + count);
    if (ring->starved.load() != 0 && ring->starved.exchange(0) != 0 && peer) peer->ring();
  }
  /// Reads what there is of `data`; returns how much.
  std::size_t read(std::span<std::byte> data) const {
    const auto place = there(data.size(), 1);
    if (place.empty()) return 0;
    std::memcpy(data.data(), place.data(), place.size());
    take(place.size());
    return place.size();
  }
};

}  // namespace kolo
