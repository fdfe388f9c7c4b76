#include "ops/shm/peer_tensors.h"

#include <span>

namespace kolo {

const std::byte* PeerTensors::input(int rank, std::size_t tensor, std::size_t offset, std::size_t bytes) {
  if (const auto& mapped = in(rank, tensor).mapped) return mapped.get() + offset;
  if (copies_.empty()) copies_.resize(stride_ * members_.size());
  std::byte* const copy = copies_.data() + static_cast<std::size_t>(rank) * stride_;
  read(rank, tensor, offset, copy, bytes);
  return copy;
}

void PeerTensors::read(int rank, std::size_t tensor, std::size_t offset, std::byte* to, std::size_t bytes) {
  if (memory_.read(members_[static_cast<std::size_t>(rank)], in(rank, tensor).address + offset, {to, bytes})) return;
  throw Error(ErrorCode::aborted, "the tensors of a rank of the group can be read no more: it has left, or freed them");
}

}  // namespace kolo
