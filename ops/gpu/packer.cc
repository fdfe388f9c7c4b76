#include "ops/gpu/packer.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace kolo {

void Packer::move(std::vector<PackItem> moves, const Conversion& how) {
  const std::int64_t tiles = lay_tiles(moves, how);
  if (tiles == 0) return;
  if (moves.size() <= most_moves_passed) return gpu_.move(moves.data(), moves.size(), tiles, how, stream_);
  const std::size_t bytes = moves.size() * sizeof(PackItem);
  Table& table = free_table(bytes);
  std::memcpy(table.pinned.data(), moves.data(), bytes);
  gpu_.copy(table.on_card.data(), table.pinned.data(), bytes, stream_);
  gpu_.move(reinterpret_cast<const PackItem*>(table.on_card.data()), moves.size(), tiles, how, stream_);
  table.read = gpu_.mark(stream_);
}

/// The table used longest ago that has been read and is long enough, or one more.
Packer::Table& Packer::free_table(std::size_t bytes) {
  const auto found = std::ranges::find_if(tables_, [&](const Table& table) {
    return table.pinned.size() >= bytes && (!table.read || table.read->passed());
  });
  if (found != tables_.end()) {
    Table table = std::move(*found);
    tables_.erase(found);
    tables_.push_back(std::move(table));
  } else {
    const std::size_t room = std::bit_ceil(std::max(bytes, shortest_table));
    tables_.push_back({GpuBuffer(gpu_, room, GpuBuffer::Kind::pinned), GpuBuffer(gpu_, room), nullptr});
  }
  return tables_.back();
}

}  // namespace kolo
