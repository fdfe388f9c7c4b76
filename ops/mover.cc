#include "ops/mover.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace kolo {

void Mover::move(std::vector<Move> moves, const Conversion& how) {
  const std::int64_t tiles = lay_tiles(moves, how);
  if (tiles == 0) return;
  ++launches_;
  if (moves.size() <= most_moves_passed) return card_.move(moves.data(), moves.size(), tiles, how, stream_);
  const std::size_t bytes = moves.size() * sizeof(Move);
  Table& table = free_table(bytes);
  std::memcpy(table.pinned.data(), moves.data(), bytes);
  card_.copy(table.on_card.data(), table.pinned.data(), bytes, stream_);
  card_.move(reinterpret_cast<const Move*>(table.on_card.data()), moves.size(), tiles, how, stream_);
  table.read = card_.mark(stream_);
}

/// The table used longest ago that has been read and is long enough, or one more.
Mover::Table& Mover::free_table(std::size_t bytes) {
  const auto found = std::ranges::find_if(tables_, [&](const Table& table) {
    return table.pinned.size() >= bytes && (!table.read || table.read->passed());
  });
  if (found != tables_.end()) {
    Table table = std::move(*found);
    tables_.erase(found);
    tables_.push_back(std::move(table));
  } else {
    const std::size_t room = std::bit_ceil(std::max(bytes, shortest_table));
    tables_.push_back({CardBuffer(card_, room, CardBuffer::Kind::pinned), CardBuffer(card_, room), nullptr});
  }
  return tables_.back();
}

}  // namespace kolo
