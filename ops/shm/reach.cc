#include "ops/shm/reach.h"

#include <bit>
#include <cstring>
#include <thread>

namespace kolo {
namespace {

/// Of bytes that are nowhere to be mapped the offset is where they lie in their process.
struct Address {
  std::uint64_t released = 0;
  PeerAddress shared{};
};
static_assert(sizeof(Address) == sizeof(LaneAddress));

}  // namespace

ShmReach Reach::reach_of(std::span<const std::byte> bytes) const {
  if (threads_) return ShmReach::mapped;
  if (!memory_) return ShmReach::none;
  if (memory_->find(bytes.data(), bytes.size()).piece != PeerAddress::nowhere) return ShmReach::mapped;
  return memory_->readable({}) ? ShmReach::readable : ShmReach::none;
}

LaneAddress Reach::address_of(std::span<const std::byte> bytes) const {
  Address address;
  if (!threads_) {
    address.shared = memory_->find(bytes.data(), bytes.size());
    address.released = memory_->released();
  }
  if (address.shared.piece == PeerAddress::nowhere)
    address.shared.offset = reinterpret_cast<std::uintptr_t>(bytes.data());
  return std::bit_cast<LaneAddress>(address);
}

bool Reach::copy(int from, const LaneAddress& address, std::size_t offset, std::span<std::byte> to) const {
  const auto there = std::bit_cast<Address>(address);
  if (threads_) {
    std::memcpy(to.data(), reinterpret_cast<const std::byte*>(there.shared.offset) + offset, to.size());
    return true;
  }
  if (!memory_) return false;
  if (there.shared.piece == PeerAddress::nowhere) return memory_->read(from, there.shared.offset + offset, to);
  try {
    memory_->forget_released(from, there.released);
    std::memcpy(to.data(), memory_->map_again(from, there.shared).get() + offset, to.size());
    return true;
  } catch (const Error&) {  // it has been freed, or there is no room for a mapping
    return false;
  }
}

ByteLane::Fetched Reach::fetch(int from, Showing& showing, const LaneAddress& address, std::size_t offset,
                               std::span<std::byte> to, std::uint64_t heard) const {
  using Fetched = ByteLane::Fetched;
  if (threads_) showing.inside.store(1);
  Fetched result = Fetched::withdrawn;
  if (showing.withdrawn.load() == heard) {
    result = copy(from, address, offset, to) ? Fetched::all : Fetched::impossible;
    // Written to, so that what was copied was read before.
    if (!threads_ && showing.withdrawn.fetch_add(0) != heard) result = Fetched::withdrawn;
  }
  if (threads_) showing.inside.store(0);
  return result;
}

void Reach::withdraw(Showing& showing) const noexcept {
  showing.withdrawn.fetch_add(1);
  while (threads_ && showing.inside.load() != 0) std::this_thread::yield();
}

}  // namespace kolo
