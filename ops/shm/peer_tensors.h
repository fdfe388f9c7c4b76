#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <kolo/backend.h>

#include "ops/shm/memory.h"

namespace kolo {

/// Memory for what is read and combined at once. It stays, so that no job begins with new memory.
class RoomForCopies final {
 public:
  /// At least so many bytes; what an earlier call returned may be gone.
  std::byte* get(std::size_t bytes);

 private:
  std::unique_ptr<std::byte[]> begin_;
  std::size_t bytes_ = 0;
};

/// Where the tensors of a bucket lie on all ranks of the group, and how this rank reads them.
class PeerTensors final {
 public:
  /// Of a tensor of another rank.
  struct Side {
    std::shared_ptr<std::byte> mapped{};  ///< into this process; null: it is not, or peers have nothing to do with it
    std::uint64_t address = 0;            ///< in that rank's process
  };

  /// memory   of this rank
  /// members  the ranks of the group, as `memory` counts them
  /// room     for input(); others may use it between two pieces
  /// piece    the most bytes of one tensor that input() gets at once
  PeerTensors(const Bucket& bucket, ShmMemory& memory, const std::vector<int>& members, RoomForCopies& room,
              std::size_t piece)
      : memory_(memory),
        members_(members),
        room_(room),
        tensors_(bucket.tensors.size()),
        stride_((piece + 63) / 64 * 64),
        sides_(2 * tensors_ * members.size()) {}

  /// Of tensor `tensor` of rank `rank`. This rank's own are always mapped.
  Side& in(int rank, std::size_t tensor) { return sides_[2 * place(rank, tensor)]; }
  Side& out(int rank, std::size_t tensor) { return sides_[2 * place(rank, tensor) + 1]; }

  /// Bytes of another rank's input, from `offset` on: where they are mapped, or copied, until the next call for that
  /// rank, of whatever bucket. Throws Error{aborted} if they cannot be read.
  const std::byte* input(int rank, std::size_t tensor, std::size_t offset, std::size_t bytes);
  /// Copies them, which are not mapped.
  void read(int rank, std::size_t tensor, std::size_t offset, std::byte* to, std::size_t bytes);

  // Lists for one reduction, kept so that pieces need no allocation.
  std::vector<const void*> sources;
  std::vector<void*> cached, streamed;

 private:
  std::size_t place(int rank, std::size_t tensor) const { return static_cast<std::size_t>(rank) * tensors_ + tensor; }

  ShmMemory& memory_;
  const std::vector<int>& members_;
  RoomForCopies& room_;
  std::size_t tensors_, stride_;
  std::vector<Side> sides_;
};

}  // namespace kolo
