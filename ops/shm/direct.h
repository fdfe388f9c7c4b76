#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <kolo/backend.h>

namespace kolo {

struct ShmMethod;

/// The tensors of a bucket on all ranks of the group, mapped into this process.
class PeerTensors final {
 public:
  PeerTensors(const Bucket& bucket, int ranks)
      : tensors_(bucket.tensors.size()), addresses_(2 * tensors_ * static_cast<std::size_t>(ranks)) {}

  /// Of tensor `tensor` of rank `rank`; null where peers have nothing to do with it. This rank's own are always there.
  std::shared_ptr<std::byte>& in(int rank, std::size_t tensor) {
    return addresses_[2 * (static_cast<std::size_t>(rank) * tensors_ + tensor)];
  }
  std::shared_ptr<std::byte>& out(int rank, std::size_t tensor) {
    return addresses_[2 * (static_cast<std::size_t>(rank) * tensors_ + tensor) + 1];
  }

  // Lists for one reduction, kept so that pieces need no allocation.
  std::vector<const void*> sources;
  std::vector<void*> cached, streamed;

 private:
  std::size_t tensors_;
  std::vector<std::shared_ptr<std::byte>> addresses_;
};

/// The method of direct access for a kind of operation; null if there is none.
const ShmMethod* shm_direct_method(OpKind kind);

}  // namespace kolo
