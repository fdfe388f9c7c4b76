#include "ops/shm/peer_tensors.h"

#include <span>

namespace kolo {

std::byte* RoomForCopies::get(std::size_t bytes) {
  if (bytes_ < bytes) {
    begin_ = std::make_unique_for_overwrite<std::byte[]>(bytes);
    bytes_ = bytes;
  }
  return begin_.get();
}

const std::byte* PeerTensors::input(int rank, std::size_t tensor, std::size_t offset, std::size_t bytes) {
  if (const auto& mapped = in(rank, tensor).mapped) return mapped.get() + offset;
  std::byte* const copy = room_.get(stride_ * members_.size()) + static_cast<std::size_t>(rank) * stride_;
  read(rank, tensor, offset, copy, bytes);
  return copy;
}

void PeerTensors::read(int rank, std::size_t tensor, std::size_t offset, std::byte* to, std::size_t bytes) {
  if (memory_.read(members_[static_cast<std::size_t>(rank)], in(rank, tensor).address + offset, {to, bytes})) return;
  throw Error(ErrorCode::aborted, "the tensors of a rank of the group can be read no more: it has left, or freed them");
}

}  // namespace kolo
