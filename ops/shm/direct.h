#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <kolo/backend.h>

namespace kolo {

struct ShmMethod;

/// Where the tensors of a bucket lie on all ranks of the group, as this rank can reach them.
class ShmReach final {
 public:
  ShmReach(const Bucket& bucket, int ranks)
      : tensors_(bucket.tensors.size()), places_(2 * tensors_ * static_cast<std::size_t>(ranks)) {}

  /// Of tensor `tensor` of rank `rank`; null where peers have nothing to do with it. This rank's own are always there.
  std::shared_ptr<std::byte>& in(int rank, std::size_t tensor) {
    return places_[2 * (static_cast<std::size_t>(rank) * tensors_ + tensor)];
  }
  std::shared_ptr<std::byte>& out(int rank, std::size_t tensor) {
    return places_[2 * (static_cast<std::size_t>(rank) * tensors_ + tensor) + 1];
  }

  // Lists for one reduction, kept so that pieces need no allocation.
  std::vector<const void*> sources;
  std::vector<void*> cached, streamed;

 private:
  std::size_t tensors_;
  std::vector<std::shared_ptr<std::byte>> places_;
};

/// What ranks do in each phase that reach each other's tensors; null if there is no such method.
const ShmMethod* shm_direct_method(OpKind kind);

}  // namespace kolo
