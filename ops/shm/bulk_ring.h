#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>

#include "ops/host/doorbell.h"
#include "ops/host/region.h"
#include "ops/host/ring.h"
#include "ops/shm/store_policy.h"

namespace kolo {

/// A ring for the large messages of one direction of a pair, larger than the caches next to the cores (see
/// ChunkLayout). Bytes go in pieces: who waits for the next ones does not look at a line that the other one is writing.
/// Where they are written, to the cache or past it, each side finds out (StorePolicy). Its memory is taken by its
/// writer, when it has the first such message.
class BulkRing final {
 public:
  /// Of memory, for one of those of `ranks` ranks; 0: there are none, since so many would have one each.
  static std::size_t bytes(std::size_t ranks);

  /// At `offset` in a region whose memory is taken later; `bytes` as above. `peer`: the other one's doorbell, or null.
  BulkRing(std::shared_ptr<Region> region, std::size_t offset, std::size_t bytes, Doorbell* peer);

  /// By the writer, before it says that something comes this way. Returns whether it can.
  bool reserve();

  /// Moves a piece of the `left` bytes of a message at `data`; returns how much: nothing while it has to wait. Null:
  /// nothing is copied. `all`: of its bytes.
  std::size_t write(const std::byte* data, std::size_t left);
  std::size_t read(std::byte* data, std::size_t left, std::size_t all);
  /// Whether read() would move something.
  bool pending(std::size_t left) const { return !next(left).empty(); }

 private:
  std::span<const std::byte> next(std::size_t left) const;

  std::size_t offset_, bytes_;
  RingEnd end_;
  std::optional<bool> reserved_;
  StorePolicy shows_, results_;  // of the writer and of the reader
};

}  // namespace kolo
