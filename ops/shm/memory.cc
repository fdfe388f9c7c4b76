#include "ops/shm/memory.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>

namespace kolo {

namespace {

constexpr std::size_t alignment_of_parts = 128;

}  // namespace

std::shared_ptr<std::byte> ShmMemory::allocate(std::size_t bytes, Device device) {
  if (device.kind != DeviceKind::cpu) return nullptr;
  try {
    return reserve(bytes);
  } catch (const Error&) {
    return nullptr;  // too many descriptors, or too little memory: the caller tries ordinary memory
  }
}

std::shared_ptr<std::byte> ShmMemory::reserve(std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  Piece piece = make_piece(std::max<std::size_t>(bytes, 1), last_number_ + 1);
  ++last_number_;
  std::byte* const begin = piece.begin.get();
  pieces_.emplace(begin, std::move(piece));
  return {begin, [self = shared_from_this()](std::byte* data) mutable {
            const auto memory = std::move(self);  // which may keep a weak_ptr to the piece, and with it this function
            Piece gone;                           // unmapped after the lock is given back
            const std::lock_guard lock(memory->mutex_);
            const auto found = memory->pieces_.find(data);
            gone = std::move(found->second);
            memory->pieces_.erase(found);
            memory->released_.fetch_add(1, std::memory_order_relaxed);
          }};
}

bool ShmMemory::adopt(void* data, std::size_t bytes) {
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto at = reinterpret_cast<std::uintptr_t>(data);
  const std::uintptr_t first = (at + page - 1) / page * page, last = (at + bytes) / page * page;
  if (first >= last) return true;
  auto* const begin = reinterpret_cast<std::byte*>(first);
  const std::lock_guard lock(mutex_);
  const auto after = pieces_.lower_bound(reinterpret_cast<std::byte*>(last));
  if (after != pieces_.begin()) {
    const Piece& before = std::prev(after)->second;
    const auto end = reinterpret_cast<std::uintptr_t>(before.begin.get()) + before.bytes;
    if (end > first)
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("cannot adopt {} bytes: some of this memory {}; adopt memory "
                              "of the program, and once",
                              bytes, before.adopted ? "has been adopted" : "is the session's"));
  }
  Piece piece = adopt_piece(begin, last - first, last_number_ + 1);
  ++last_number_;
  piece.adopted = true;
  pieces_.emplace(begin, std::move(piece));
  return true;
}

void ShmMemory::give_back_adopted() noexcept {
  const std::lock_guard lock(mutex_);
  std::erase_if(pieces_, [this](const auto& entry) {
    if (entry.second.adopted) released_.fetch_add(1, std::memory_order_relaxed);
    return entry.second.adopted;
  });
}

std::shared_ptr<std::byte> ShmMemory::reserve_part(std::size_t bytes) {
  const std::lock_guard lock(parts_mutex_);
  auto piece = parts_.lock();
  if (!piece || parts_bytes_ + bytes > piece_of_parts) {
    piece = reserve(std::max(piece_of_parts, bytes));
    parts_ = piece;
    parts_bytes_ = 0;
  }
  std::byte* const part = piece.get() + parts_bytes_;
  parts_bytes_ += (bytes + alignment_of_parts - 1) / alignment_of_parts * alignment_of_parts;
  return {std::move(piece), part};
}

std::shared_ptr<std::byte> ShmMemory::piece_at(const std::byte* begin) const {
  const std::lock_guard lock(mutex_);
  const auto found = pieces_.find(begin);
  return found == pieces_.end() ? nullptr : found->second.begin;
}

PeerAddress ShmMemory::find(const void* data, std::size_t bytes) const {
  if (bytes == 0) return {PeerAddress::empty};
  const auto* const begin = static_cast<const std::byte*>(data);
  const std::lock_guard lock(mutex_);
  const auto after = pieces_.upper_bound(begin);
  if (after == pieces_.begin()) return {};
  const Piece& piece = std::prev(after)->second;
  const auto offset = static_cast<std::size_t>(begin - piece.begin.get());
  if (offset >= piece.bytes || bytes > piece.bytes - offset) return {};
  return {piece.number, offset, piece.bytes, piece.descriptor, piece.file, piece.xpmem};
}

}  // namespace kolo
