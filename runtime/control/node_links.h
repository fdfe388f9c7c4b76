#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "ops/host/doorbell.h"
#include "ops/host/region.h"
#include "runtime/control/channel.h"

namespace kolo {

/// Control messages between the ranks of one node, over a region they share: for each ordered pair of ranks a ring of
/// bytes with one writer and one reader, for each rank a doorbell and one bit per sender, set when that
/// sender's ring has new bytes.
///
/// A message is a 32-bit length and its bytes; one longer than the ring goes through in pieces. A writer that finds
/// the ring full keeps the rest and sets `starved`; the reader rings it back after making room.
class NodeLinks {
 public:
  static constexpr std::size_t align = 64;

  /// Bytes of region that links between `ranks` ranks need.
  static std::size_t bytes(int ranks);

  /// `index` is this rank's place among the `ranks` of the node; the region starts as zeros.
  NodeLinks(std::shared_ptr<Region> region, std::size_t offset, int index, int ranks);
  ~NodeLinks();
  NodeLinks(const NodeLinks&) = delete;
  NodeLinks& operator=(const NodeLinks&) = delete;

  void send(int to, std::span<const std::byte> message);
  bool receive(ControlChannel::Message& message);  // `from` is an index on this node
  bool pending() const;
  bool flush();
  /// That rank is gone: nothing more is sent to it.
  void drop(int index);
  /// Whether the links of that rank have ended.
  bool has_closed(int index) { return ring(index, index_).closed.load(std::memory_order_acquire) != 0; }

  Doorbell& doorbell(int index) { return doorbells_[index]; }
  std::span<Doorbell> doorbells() { return {doorbells_, static_cast<std::size_t>(ranks_)}; }

 private:
  struct alignas(align) Cursor {
    std::atomic<std::uint64_t> bytes;  // ever written (by the writer) or read (by the reader)
  };
  struct Ring {
    Cursor written;
    Cursor read;
    alignas(align) std::atomic<std::uint32_t> starved;
    std::atomic<std::uint32_t> closed;  // by the writer
    // the bytes follow
  };

  static std::size_t ring_bytes(int ranks);
  static std::size_t doorbell_words(int ranks);
  Ring& ring(int from, int to);
  std::atomic<std::uint64_t>* senders(int index);
  void ring_doorbell(int to);
  bool push(int to);  // moves queued bytes into the ring; true if all fitted
  void drain(int from);

  std::shared_ptr<Region> region_;
  int index_;
  int ranks_;
  Doorbell* doorbells_;
  std::byte* senders_;
  std::byte* rings_;
  std::vector<std::deque<std::byte>> outgoing_;   // by receiver: bytes that did not fit yet
  std::vector<bool> gone_;                        // by receiver
  std::vector<std::vector<std::byte>> incoming_;  // by sender: an incomplete message
  std::deque<ControlChannel::Message> messages_;
};

}  // namespace kolo
