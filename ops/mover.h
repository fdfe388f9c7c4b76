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

  /// Puts one launch on the stream for all of `moves` (more than `most_in_a_table`: one for each so many). Throws
  /// Error{backend}.
  void move(std::vector<Move> moves, const Conversion& how);

  std::uint64_t launches() const { return launches_; }

  static constexpr std::size_t most_in_a_table = 1 << 14;

 private:
  struct Table {
    CardBuffer pinned;
    CardBuffer on_card;
    std::shared_ptr<const DevicePoint> read;  // by the launch that used it last
  };
  void launch(std::vector<Move>& moves, const Conversion& how);
  Table& free_table();

  Card& card_;
  void* stream_;
  std::deque<Table> tables_;
  std::uint64_t launches_ = 0;
};

}  // namespace kolo
