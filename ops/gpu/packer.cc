#include "ops/gpu/packer.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace kolo {

void Packer::run(std::vector<PackItem> items, const Conversion& how) {
  const std::int64_t tiles = lay_tiles(items, how);
  if (tiles == 0) return;
  if (items.size() <= most_items_passed) return gpu_.pack(items.data(), items.size(), tiles, how, stream_);
  const std::size_t bytes = items.size() * sizeof(PackItem);
  Table& table = free_table(bytes);
  std::memcpy(table.pinned.data(), items.data(), bytes);
  gpu_.copy(table.on_gpu.data(), table.pinned.data(), bytes, stream_);
  gpu_.pack(reinterpret_cast<const PackItem*>(table.on_gpu.data()), items.size(), tiles, how, stream_);
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
