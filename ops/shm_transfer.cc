#include "ops/shm_transfer.h"

#include <array>
#include <cstring>
#include <utility>

#include "ops/copy.h"

namespace kolo {
namespace {

/// Kinds that send each rank something else have a part for every rank.
int parts_of(OpKind kind, int ranks) {
  return kind == OpKind::reduce_scatter || kind == OpKind::scatter || kind == OpKind::all_to_all ? ranks : 1;
}

std::int64_t flat_elements(const Bucket& bucket, int ranks) {
  std::int64_t sum = 0;
  for (const BucketTensor& tensor : bucket.tensors) sum += flat_length(bucket.signature.kind, tensor, ranks);
  return sum;
}

/// A cut that gives parts of whole cache lines.
std::int64_t elements_of_chunk(DType dtype, int parts, const ShmTuning& tuning) {
  const std::int64_t lines = std::max<std::int64_t>(tuning.chunk / 64 / parts, 1);
  return lines * static_cast<std::int64_t>(64 / size_of(dtype));
}

}  // namespace

ShmJob::ShmJob(Bucket of, int ranks, const ShmTuning& tuning)
    : bucket(std::move(of)),
      reduction(reduction_of(bucket.signature, ranks, bucket.absent.size())),
      left(flat_elements(bucket, ranks)),
      parts(parts_of(bucket.signature.kind, ranks)),
      chunk_elements(elements_of_chunk(bucket.signature.dtype, parts, tuning)),
      complete(left == 0) {
  const OpKind kind = bucket.signature.kind;
  const std::int64_t bytes = left * static_cast<std::int64_t>(size_of(bucket.signature.dtype));
  whole = bytes <= tuning.whole || ranks == 1 || (kind == OpKind::reduce && ranks == 2);
  streamed = bytes * (has_blocks(kind) ? ranks : 1) > tuning.streamed;
  method = shm_method(kind, whole);
}

std::size_t ShmJob::part_bytes() const {
  return (static_cast<std::size_t>(next_count()) * size_of(bucket.signature.dtype) + 63) / 64 * 64;
}

const ShmMethod* shm_method(OpKind kind, bool whole) {
  switch (kind) {
    case OpKind::all_reduce: return whole ? &shm_all_reduce_whole : &shm_all_reduce;
    case OpKind::reduce: return whole ? &shm_reduce_whole : &shm_reduce;
    case OpKind::reduce_scatter: return &shm_reduce_scatter;
    case OpKind::broadcast: return &shm_broadcast;
    case OpKind::all_gather: return &shm_all_gather;
    case OpKind::gather: return &shm_gather;
    case OpKind::scatter: return &shm_scatter;
    case OpKind::all_to_all: return &shm_all_to_all;
    case OpKind::barrier:
    case OpKind::make_group:
    case OpKind::remove_group: return nullptr;
  }
  return nullptr;
}

void ShmTransfer::begin(ShmJob& job, std::size_t place) {
  job_ = &job;
  place_ = place;
  position_ = job.next;
  count_ = job.next_count();
  part_bytes_ = job.part_bytes();
  job.left -= count_;
  last_ = job.left == 0;
  if (!last_) job.next = kolo::for_each_piece(job.bucket, ranks(), position_, count_, [](const Piece&) {});
}

bool ShmTransfer::reads_from(int peer) const {
  switch (signature().kind) {
    case OpKind::broadcast:
    case OpKind::scatter: return peer == signature().root;
    case OpKind::reduce:
    case OpKind::gather: return is_root();
    default: return true;
  }
}

void ShmTransfer::put(std::byte* to, const Tensor& from, std::int64_t offset, std::int64_t count) const {
  std::memcpy(to, address(from, offset), static_cast<std::size_t>(count) * element_bytes());
}

void ShmTransfer::write(const Tensor& to, std::int64_t offset, std::int64_t count, const std::byte* from) const {
  std::byte* const out = address(to, offset);
  if (out == from) return;
  const std::size_t bytes = static_cast<std::size_t>(count) * element_bytes();
  job_->streamed ? copy_past_cache(out, from, bytes) : (void)std::memcpy(out, from, bytes);
}

void ShmTransfer::reduce_sources(std::int64_t count, std::byte* shown, std::byte* out) const {
  const auto elements = static_cast<std::size_t>(count);
  std::array<void*, 2> to{};
  std::size_t destinations = 0;
  if (shown) to[destinations++] = shown;
  if (out && !job_->streamed) to[destinations++] = out;
  reduce(job_->reduction, sources_, std::span(to).first(destinations), elements, job_->streamed ? out : nullptr);
}

}  // namespace kolo
