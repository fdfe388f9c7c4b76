#include "ops/shm/chunk_layout.h"

#include <algorithm>
#include <fstream>
#include <string>

namespace kolo {
namespace {

constexpr std::size_t line = 64;
constexpr std::size_t page = 4096;
constexpr std::size_t stamp_bytes = 8;

/// The size of this machine's cache of a level, next to its first core; `otherwise` if the system does not say.
std::int64_t cache_bytes(int level, std::int64_t otherwise) {
  std::ifstream file("/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(level) +
                     "/size");  // 0 and 1 are of level 1
  std::int64_t size = 0;
  char unit = 0;
  if (!(file >> size >> unit) || size <= 0) return otherwise;
  return unit == 'K' ? size << 10 : unit == 'M' ? size << 20 : otherwise;
}

}  // namespace

ShmTuning tuning_for_machine(int ranks) {
  const std::int64_t own = cache_bytes(2, 1 << 20), shared = cache_bytes(3, 32 << 20);
  ShmTuning tuning;
  tuning.ring = std::clamp<std::int64_t>(2 * own, tuning.chunk, std::max(tuning.chunk, shared / 2 / ranks));
  tuning.ring = std::max<std::int64_t>(tuning.ring / 4096 * 4096, 2 * tuning.chunk);
  // Below, inputs and outputs of all ranks fit into the cache that they share, of which a machine may have lent a part.
  tuning.large = std::clamp(shared / (std::int64_t{2} * ranks), own, 8 * own);
  tuning.spills = own;
  return tuning;
}

ShmTuning small_tuning(ShmTuning tuning, int ranks) {
  tuning.ring = 0;
  tuning.in_flight = std::min<std::int64_t>(tuning.in_flight, 4);
  tuning.chunk = tuning.hot = std::max<std::int64_t>(2, ranks) * static_cast<std::int64_t>(line);  // parts for all
  return tuning;
}

std::size_t ChunkLayout::hot_stride(const ShmTuning& tuning) {
  return (static_cast<std::size_t>(tuning.hot) + stamp_bytes + line - 1) / line * line;
}

std::size_t ChunkLayout::ring_begin(const ShmTuning& tuning) {
  const std::size_t hot = static_cast<std::size_t>(tuning.in_flight) * hot_stride(tuning);
  return tuning.ring == 0 ? hot : (hot + page - 1) / page * page;
}

std::size_t ChunkLayout::ring_bytes(int ranks, const ShmTuning& tuning) {
  return tuning.ring == 0 ? 0
                          : static_cast<std::size_t>(std::max<std::int64_t>(tuning.ring, std::int64_t{line} * ranks));
}

std::size_t ChunkLayout::bytes(int ranks, const ShmTuning& tuning) {
  return ring_begin(tuning) + ring_bytes(ranks, tuning);
}

ChunkLayout::ChunkLayout(int ranks, const ShmTuning& tuning)
    : hot_(static_cast<std::size_t>(tuning.hot)),
      hot_stride_(hot_stride(tuning)),
      ring_begin_(ring_begin(tuning)),
      ring_(ring_bytes(ranks, tuning)),
      begins_(static_cast<std::size_t>(tuning.in_flight)) {}

std::uint64_t ChunkLayout::begin_of(std::size_t bytes) const {
  const std::size_t left = ring_ - static_cast<std::size_t>(end_ % ring_);
  return bytes <= left ? end_ : end_ + left;
}

ChunkPlace ChunkLayout::place(std::uint64_t chunk, std::size_t bytes) {
  const std::size_t turn = turn_of(chunk);
  begins_[turn] = end_;
  if (is_hot(bytes)) return {turn * hot_stride_ + stamp_bytes, true};
  begins_[turn] = begin_of(bytes);
  end_ = begins_[turn] + bytes;
  return {ring_begin_ + static_cast<std::size_t>(begins_[turn] % ring_), false};
}

bool ChunkLayout::collide(std::uint64_t earlier, std::uint64_t later, std::size_t bytes) const {
  if (later - earlier >= begins_.size()) return true;
  return !is_hot(bytes) && begin_of(bytes) + bytes - begins_[turn_of(earlier)] > ring_;
}

}  // namespace kolo
