#include "ops/shm/transfer.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <utility>

#include "ops/kernels/copy.h"
#include "ops/shm/direct.h"
#include "ops/shm/question.h"

namespace kolo {
namespace {

std::int64_t flat_elements(const Bucket& bucket, int ranks) {
  std::int64_t sum = 0;
  for (const BucketTensor& tensor : bucket.tensors) sum += flat_length(bucket.signature.kind, tensor, ranks);
  return sum;
}

/// Whether the result is written in place: over the input, which is in the cache.
bool replaces_input(OpKind kind, const BucketTensor& tensor) {
  const auto* in = static_cast<const std::byte*>(tensor.in.data);
  const auto* out = static_cast<const std::byte*>(tensor.out.data);
  return kind != OpKind::broadcast && kind != OpKind::scatter && in <= out && out < in + tensor.in.bytes();
}

constexpr std::int64_t without_slots = 2 << 20;  // bytes of a chunk that takes none of the memory that ranks share

/// A cut that gives parts of whole cache lines.
std::int64_t elements_of_chunk(DType dtype, int parts, std::int64_t bytes) {
  const std::int64_t lines = std::max<std::int64_t>(bytes / 64 / parts, 1);
  return lines * static_cast<std::int64_t>(64 / size_of(dtype));
}

}  // namespace

int shm_parts(OpKind kind, int ranks) {
  return traits(kind).out == Rows::dealt || traits(kind).in == Rows::blocks ? ranks : 1;
}

ShmFlow shm_flow(const Signature& signature, bool whole) {
  switch (signature.kind) {
    case OpKind::broadcast:
    case OpKind::scatter: return {ShmFlow::Shape::from_root, signature.root};
    case OpKind::gather: return {ShmFlow::Shape::to_root, signature.root};
    case OpKind::reduce: return {whole ? ShmFlow::Shape::to_root : ShmFlow::Shape::all, signature.root};
    default: return {};
  }
}

ShmJob::ShmJob(const Bucket& of, int ranks, const ShmTuning& tuning)
    : bucket(of),
      reduction(reduction_of(bucket.signature, bucket.divide_by)),
      left(flat_elements(bucket, ranks)),
      parts(shm_parts(bucket.signature.kind, ranks)),
      complete(left == 0) {
  const OpKind kind = bucket.signature.kind;
  const std::int64_t bytes = left * static_cast<std::int64_t>(size_of(bucket.signature.dtype));
  all_bytes = bytes * (has_blocks(kind) ? ranks : 1);
  whole = bytes <= tuning.whole || ranks == 1 || (kind == OpKind::reduce && ranks == 2);
  large = all_bytes >= tuning.large;
  in_place =
      all_bytes >= std::min(tuning.large, tuning.direct) &&
      std::ranges::any_of(bucket.tensors, [&](const BucketTensor& tensor) { return replaces_input(kind, tensor); });
  times_results = large ? in_place : all_bytes >= tuning.spills;
  method = shm_method(kind, whole);
  flow = shm_flow(bucket.signature, whole);
  job_class = {kind, static_cast<std::uint8_t>(std::bit_width(static_cast<std::uint64_t>(all_bytes))),
               static_cast<std::uint8_t>(reduces(kind) ? size_of(bucket.signature.dtype) : 1)};
}

void ShmJob::choose(const ShmChoice& chosen) {
  choice = chosen;
  const std::int64_t bytes = left * static_cast<std::int64_t>(size_of(bucket.signature.dtype));
  const bool one_chunk = (bytes + 64) * parts <= choice.bytes;  // also where parts are rounded up to lines
  chunk_elements = one_chunk ? left : elements_of_chunk(bucket.signature.dtype, parts, choice.bytes);
}

std::size_t ShmJob::part_bytes() const {
  return (static_cast<std::size_t>(next_count()) * size_of(bucket.signature.dtype) + 63) / 64 * 64;
}

std::size_t ShmJob::next_bytes() const {
  if (asks == Asks::next) return question->bytes(*this);
  return method->has_slots ? part_bytes() * static_cast<std::size_t>(parts) : 0;
}

void ShmJob::answer(const ShmChoice& chosen, std::unique_ptr<PeerTensors> found) {
  asks = Asks::no;
  peer_tensors = std::move(found);
  if (!peer_tensors) return choose(chosen);
  choice = chosen;
  method = shm_direct_method(bucket.signature.kind, choice.way);
  pushes = choice.way == ShmWay::mapped && shm_pushes(bucket.signature.kind);
  times_results = pushes && (!large || in_place);
  flow = {};
  if (!method->has_slots) chunk_elements = elements_of_chunk(bucket.signature.dtype, 1, without_slots);
}

std::size_t ShmJob::next_timed_bytes() const {
  if (!times_results || asks == Asks::next) return 0;
  return static_cast<std::size_t>(next_count()) * size_of(bucket.signature.dtype);
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
    default: return nullptr;
  }
}

void ShmTransfer::begin(ShmJob& job, std::uint64_t number, ChunkPlace place, CopyTo shows_in, CopyTo results_in) {
  job_ = &job;
  number_ = number;
  place_ = place;
  shows_in_ = shows_in;
  results_in_ = results_in;
  put_bytes_ = 0;
  written_bytes_ = 0;
  if (job.asks == ShmJob::Asks::next) return begin_asking();
  method_ = job.method;
  flow_ = job.flow;
  position_ = job.next;
  count_ = job.next_count();
  part_bytes_ = job.part_bytes();
  piece_ = 0;
  pieces_ = job.peer_tensors ? static_cast<int>((bytes() + job.choice.bytes - 1) / job.choice.bytes) : 1;
  job.left -= count_;
  last_ = job.left == 0;
  if (!last_) job.next = kolo::for_each_segment(job.bucket, ranks(), position_, count_, [](const Segment&) {});
}

void ShmTransfer::begin_asking() {
  job_->asks = ShmJob::Asks::waits;
  method_ = &shm_ask;
  flow_ = {};
  count_ = 0;
  piece_ = 0;
  pieces_ = 1;
  last_ = false;
}

void ShmTransfer::show_packed() {
  if (!flow_.shows(rank())) return;
  place_.hot ? board_.set_stamp(place_, number_, job_->number)
             : board_.advance(ShmBoard::Phase::packed, number_, job_->number);
}

bool ShmTransfer::all_packed() const {
  for (int peer = 0; peer < ranks(); ++peer) {
    if (peer == rank() || !flow_.shows(peer)) continue;
    const bool packed =
        place_.hot ? board_.stamped(place_, peer, number_) : board_.reached(ShmBoard::Phase::packed, peer, number_);
    if (!packed) return false;
  }
  return true;
}

void ShmTransfer::put(std::byte* to, const Tensor& from, std::int64_t offset, std::int64_t count) {
  const std::size_t bytes = static_cast<std::size_t>(count) * element_bytes();
  copy(to, address(from, offset), bytes, shows_in_);
  put_bytes_ += bytes;
}

bool ShmTransfer::streams(const BucketTensor& tensor) const {
  const bool in_place = job_->pushes ? job_->in_place : replaces_input(signature().kind, tensor);
  return results_in_ == CopyTo::memory || (job_->large && !in_place);
}

void ShmTransfer::write_to(std::byte* to, const BucketTensor& tensor, std::int64_t count, const std::byte* from) {
  if (to == from) return;
  const std::size_t bytes = static_cast<std::size_t>(count) * element_bytes();
  written_bytes_ += bytes;
  copy(to, from, bytes, streams(tensor) ? CopyTo::memory : CopyTo::cache);
}

void ShmTransfer::reduce_sources(std::size_t sources, std::int64_t count, std::byte* shown, std::byte* out,
                                 bool streams) const {
  std::array<void*, 2> cached{}, streamed{};
  std::size_t to_cache = 0, to_memory = 0;
  const auto add = [&](std::byte* to, bool past_cache) {
    if (to) (past_cache ? streamed[to_memory++] : cached[to_cache++]) = to;
  };
  add(shown, shows_in_ == CopyTo::memory);
  add(out, streams);
  reduce(job_->reduction, std::span(sources_).first(sources), std::span(cached).first(to_cache),
         static_cast<std::size_t>(count), std::span(streamed).first(to_memory));
}

}  // namespace kolo
