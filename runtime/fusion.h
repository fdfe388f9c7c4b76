#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/plan_cache.h"

namespace kolo {

/// Whether two tensors may share a bucket: everything but the shape is equal, and there is something to move. Of every kind of
/// operation shapes may differ even in what is not the first dimension: tensors of a bucket are cut into blocks one by one.
bool fusable(const Signature& a, const Signature& b);

/// Cuts a run of submissions, in program order, into buckets of at most `fusion_bytes` of input (a larger tensor goes alone).
///
/// A tensor whose name has several signatures goes alone too: then a rank that believes in another shape is noticed at once. One
/// bucket is open per kind of tensor: mixed dtypes interleave without breaking each other's buckets. A tensor joins the
/// open bucket it is fusable with, or closes it if it does not fit. Buckets come out in the order of their first members. A
/// pure function of its arguments: the layout follows the program's order only.
std::vector<std::vector<TensorNumber>> fuse(std::span<const TensorNumber> run, const PlanCache& plan,
                                            std::int64_t fusion_bytes);

}  // namespace kolo
