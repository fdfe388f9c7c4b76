#include "runtime/negotiation/fusion.h"

#include <limits>

namespace kolo {

bool fusable(const Signature& a, const Signature& b) {
  if (!moves_data(a.kind) || !a.members.empty()) return false;
  Signature other = b;
  other.shape = a.shape;
  return a == other;
}

std::vector<std::vector<TensorNumber>> fuse(std::span<const Fusible> run, std::int64_t fusion_bytes) {
  struct Open {
    const Signature* kind;
    std::size_t bucket;
    std::int64_t bytes;
  };
  std::vector<std::vector<TensorNumber>> buckets;
  std::vector<Open> open;
  for (const Fusible& tensor : run) {
    Open* joined = nullptr;
    for (Open& candidate : open) {
      if (!tensor.alone && fusable(*candidate.kind, *tensor.signature)) joined = &candidate;
    }
    if (joined && joined->bytes < fusion_bytes) {
      buckets[joined->bucket].push_back(tensor.number);
      if (__builtin_add_overflow(joined->bytes, tensor.bytes, &joined->bytes))
        joined->bytes = std::numeric_limits<std::int64_t>::max();
      continue;
    }
    buckets.push_back({tensor.number});
    if (tensor.alone) continue;
    const Open fresh{tensor.signature, buckets.size() - 1, tensor.bytes};
    if (joined) {
      *joined = fresh;
    } else {
      open.push_back(fresh);
    }
  }
  return buckets;
}

}  // namespace kolo
