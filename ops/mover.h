#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "ops/card.h"

namespace kolo {

/// Launches lists of moves on one stream: short lists as arguments, long ones as tables that are copied to the card
/// before. Tables are used again once the stream has read them; nothing waits.
class Mover final {
 public:
  Mover(Card& card, void* stream) : card_(card), stream_(stream) {}

  /// Puts one launch on the stream for all of `moves`, however many. Throws Error{backend}.
  void move(std::vector<Move> moves, const Conversion& how);

  std::uint64_t launches() const { return launches_; }

 private:
  struct Table {
    CardBuffer pinned;
    CardBuffer on_card;
    std::shared_ptr<const DevicePoint> read;  // by the launch that used it last
  };
  static constexpr std::size_t shortest_table = std::size_t{1} << 17;  // bytes: 4096 moves

  Table& free_table(std::size_t bytes);

  Card& card_;
  void* stream_;
  std::deque<Table> tables_;
  std::uint64_t launches_ = 0;
};

}  // namespace kolo
