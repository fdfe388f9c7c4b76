#include "ops/mover.h"

#include <algorithm>
#include <cstring>

namespace kolo {

void Mover::move(std::vector<Move> moves, const Conversion& how) {
  for (std::size_t begin = 0; begin < moves.size(); begin += most_in_a_table) {
    if (moves.size() <= most_in_a_table) return launch(moves, how);
    const auto first = moves.begin() + static_cast<std::ptrdiff_t>(begin);
    std::vector<Move> part(first, first + static_cast<std::ptrdiff_t>(std::min(most_in_a_table, moves.size() - begin)));
    launch(part, how);
  }
}

void Mover::launch(std::vector<Move>& moves, const Conversion& how) {
  const std::int64_t tiles = lay_tiles(moves, how);
  if (tiles == 0) return;
  ++launches_;
  if (moves.size() <= most_moves_passed) return card_.move(moves.data(), moves.size(), tiles, how, stream_);
  Table& table = free_table();
  std::memcpy(table.pinned.data(), moves.data(), moves.size() * sizeof(Move));
  card_.copy(table.on_card.data(), table.pinned.data(), moves.size() * sizeof(Move), stream_);
  card_.move(reinterpret_cast<const Move*>(table.on_card.data()), moves.size(), tiles, how, stream_);
  table.read = card_.mark(stream_);
}

/// The table used longest ago, if it has been read, or one more.
Mover::Table& Mover::free_table() {
  if (!tables_.empty() && tables_.front().read->passed()) {
    tables_.push_back(std::move(tables_.front()));
    tables_.pop_front();
  } else {
    constexpr std::size_t bytes = most_in_a_table * sizeof(Move);
    tables_.push_back({CardBuffer(card_, bytes, CardBuffer::Kind::pinned), CardBuffer(card_, bytes), nullptr});
  }
  return tables_.back();
}

}  // namespace kolo
