#include "ops/shm/small.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <span>

#include "ops/bucket.h"
#include "ops/kernels/reduce.h"

namespace kolo {
namespace {

constexpr std::int64_t most_bytes = 2048;  // of one rank: above, it is the copying that takes the time
constexpr int most_sources = 64;

/// Elements of `from` to their place, unless they are there.
void move(std::byte* to, const std::byte* from, std::int64_t count, DType dtype) {
  if (count > 0 && to != from) std::memcpy(to, from, static_cast<std::size_t>(count) * size_of(dtype));
}

}  // namespace

std::optional<ShmSmall> ShmSmall::of(const Bucket& bucket, const ShmBoard& board) {
  const Signature& signature = bucket.signature;
  const int ranks = board.ranks();
  if (!traits(signature.kind).has_root || bucket.tensors.size() != 1 || bucket.token != 0 || !bucket.absent.empty() ||
      ranks == 1)
    return {};
  const BucketTensor& tensor = bucket.tensors.front();
  // Dividing takes as long as all the rest here.
  const bool deals = signature.kind == OpKind::scatter;
  const bool even = deals ? tensor.in.shape[0] % ranks == 0 : !tensor.rows;
  const std::int64_t elements =
      even ? tensor.in.elements() / (deals ? ranks : 1) : flat_length(signature.kind, tensor, ranks);
  const std::int64_t bytes = elements * static_cast<std::int64_t>(size_of(signature.dtype));
  if (bytes == 0 || bytes > most_bytes) return {};
  const bool whole = bytes <= board.tuning().whole || ranks == 2;
  ShmSmall small{.bucket = bucket, .flow = shm_flow(signature, whole), .parts = shm_parts(signature.kind, ranks)};
  if (small.flow.shape == ShmFlow::Shape::all) return {};
  if (signature.kind == OpKind::reduce && ranks > most_sources) return {};
  small.block = even ? elements : 0;
  small.part_bytes = static_cast<std::size_t>(bytes + 63) / 64 * 64;
  const ShmTuning& tuning = board.tuning();
  const bool one_hot_chunk = (bytes + 64) * small.parts <= std::min(tuning.hot, tuning.chunk);
  if (!one_hot_chunk || bytes * ranks >= tuning.direct) return {};
  return small;
}

/// As those of bucket.h.
ElementRange ShmSmall::in_block(int me, int to, int ranks) const {
  const OpKind kind = bucket.signature.kind;
  if (block == 0) return kolo::in_block(kind, tensor(), ranks, me, to);
  return kind == OpKind::scatter ? ElementRange{to * block, (to + 1) * block} : ElementRange{0, block};
}

ElementRange ShmSmall::out_block(int me, int from, int ranks) const {
  const OpKind kind = bucket.signature.kind;
  if (block == 0) return kolo::out_block(kind, tensor(), ranks, me, from);
  return kind == OpKind::gather ? ElementRange{from * block, (from + 1) * block} : ElementRange{0, block};
}

void ShmSmall::show(const ShmBoard& board, const ChunkPlace& place) const {
  const int me = board.rank();
  std::byte* const slot = board.memory(me) + place.begin;
  const auto put = [&](int to, std::byte* part) {
    const ElementRange block = in_block(me, to, board.ranks());
    move(part, address(tensor().in, block.begin), block.count(), tensor().in.dtype);
  };
  if (parts == 1) return put(bucket.signature.root, slot);
  for (int to = 0; to < board.ranks(); ++to) {
    if (to != me) put(to, slot + static_cast<std::size_t>(to) * part_bytes);
  }
}

void ShmSmall::collect(const ShmBoard& board, const ChunkPlace& place) const {
  const OpKind kind = bucket.signature.kind;
  const int me = board.rank(), root = bucket.signature.root;
  if (kind == OpKind::reduce) {
    if (me == root) combine(board, place);
    return;
  }
  const auto fetch = [&](int from) {
    const ElementRange block = out_block(me, from, board.ranks());
    const std::byte* const part =
        from == me ? address(tensor().in, in_block(me, me, board.ranks()).begin)
                   : board.memory(from) + place.begin + (parts == 1 ? 0 : static_cast<std::size_t>(me) * part_bytes);
    move(address(tensor().out, block.begin), part, block.count(), tensor().out.dtype);
  };
  if (kind != OpKind::gather) return fetch(root);
  if (me != root) return;
  for (int from = 0; from < board.ranks(); ++from) fetch(from);
}

void ShmSmall::combine(const ShmBoard& board, const ChunkPlace& place) const {
  std::array<const void*, most_sources> sources;
  for (int rank = 0; rank < board.ranks(); ++rank) {
    sources[static_cast<std::size_t>(rank)] =
        rank == board.rank() ? tensor().in.data : board.memory(rank) + place.begin;
  }
  void* const out = tensor().out.data;
  reduce(reduction_of(bucket.signature, bucket.divide_by),
         std::span(sources).first(static_cast<std::size_t>(board.ranks())), std::span(&out, 1),
         static_cast<std::size_t>(tensor().in.elements()), {});
}

}  // namespace kolo
