#include "runtime/fusion.h"

namespace kolo {
namespace {

std::int64_t bytes_of(const Signature& signature) {
  return signature.shape.elements() * static_cast<std::int64_t>(size_of(signature.dtype));
}

}  // namespace

bool fusable(const Signature& a, const Signature& b) {
  if (!moves_data(a.kind)) return false;
  Signature other = b;
  other.shape = a.shape;
  return a == other;
}

std::vector<std::vector<TensorNumber>> fuse(std::span<const TensorNumber> run, const PlanCache& plan,
                                            std::int64_t fusion_bytes) {
  struct Open {
    std::size_t bucket;
    std::int64_t bytes;
  };
  std::vector<std::vector<TensorNumber>> buckets;
  std::vector<Open> open;
  for (TensorNumber number : run) {
    if (plan.row(number).ambiguous) {
      buckets.push_back({number});
      continue;
    }
    const Signature& signature = plan.row(number).signature;
    const std::int64_t bytes = bytes_of(signature);
    Open* joined = nullptr;
    for (Open& candidate : open) {
      if (fusable(plan.row(buckets[candidate.bucket].front()).signature, signature)) joined = &candidate;
    }
    if (joined && bytes <= fusion_bytes - joined->bytes) {  // a sum of two huge ones could overflow
      buckets[joined->bucket].push_back(number);
      joined->bytes += bytes;
      continue;
    }
    buckets.push_back({number});
    const Open fresh{buckets.size() - 1, bytes};
    if (joined) {
      *joined = fresh;
    } else {
      open.push_back(fresh);
    }
  }
  return buckets;
}

}  // namespace kolo
