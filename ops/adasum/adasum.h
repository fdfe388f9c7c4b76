#pragma once

#include <memory>

#include <kolo/backend.h>

namespace kolo {

/// Whether start_adasum() can run a bucket of this signature on `backend`: an all_reduce with ReduceOp::adasum of
/// floats, on a device whose memory can be copied. A pure function, like Backend::supports().
bool serves_adasum(const Backend& backend, const Signature& signature);

/// Starts a bucket with ReduceOp::adasum on a backend that does not know adasum, by several operations that it does
/// know, one after the other. Requires serves_adasum().
///
/// ranks, rank  of the group that `backend` serves
///
/// The result is the same bits on every rank, depends on each tensor alone and not on its bucket, and is rounded once:
/// sums are in f64. `prescale` and `postscale` both multiply the result, since adasum grows as its inputs do. The
/// operation holds the backend until the last of its stages is started.
///
/// Errors: throws Error{backend} if there is no memory for a copy of the bucket; step() throws what the backend does.
///
/// Cost: each rank sends and receives 2(n-1)/n * bucket.bytes(), reduces n^2/2 numbers per tensor, and multiplies n/2
/// times per element.
std::unique_ptr<Operation> start_adasum(Backend& backend, Bucket bucket, int ranks, int rank);

}  // namespace kolo
