#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/negotiation/messages.h"

namespace kolo {

/// Whether two tensors may share a bucket: everything but the shape is equal, and there is something to move. Of every
/// kind of operation shapes may differ even in what is not the first dimension: tensors of a bucket are cut into blocks
/// one by one.
bool fusable(const Signature& a, const Signature& b);

/// Whether the bits of results may depend on how buckets lie: of tensors on devices, whose library adds in an order
/// that follows from that. No timer, and no message that comes early or late, decides how their buckets lie: such a
/// bucket holds what every rank has submitted between two waits of its program (see Outstanding), and the plan changes
/// for them only where the root's program has waited for them (see PlanLearner).
inline bool layout_matters(const Signature& signature) {
  return signature.device != DeviceKind::cpu && signature.kind != OpKind::send_recv;
}

/// A tensor of a run, as fuse() sees it.
struct Fusible {
  TensorNumber number = 0;
  const Signature* signature = nullptr;
  std::int64_t bytes = 0;  ///< of input on the rank that plans
  bool alone = false;      ///< never shares a bucket
};

/// Cuts a run of submissions, in program order, into buckets: one is full as soon as it holds `fusion_bytes` of input,
/// so that of one kind of tensor there are at most ⌈bytes / fusion_bytes⌉.
///
/// A tensor whose name has several signatures goes alone: then a rank that believes in another shape is noticed at
/// once. One bucket is open per kind of tensor: mixed dtypes interleave without breaking each other's buckets. Buckets
/// come out in the order of their first members. A pure function of its arguments: the layout follows the program's
/// order only.
std::vector<std::vector<TensorNumber>> fuse(std::span<const Fusible> run, std::int64_t fusion_bytes);

}  // namespace kolo
