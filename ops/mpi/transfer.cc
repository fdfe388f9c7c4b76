#include "ops/mpi/transfer.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace kolo {

const MpiMethod* mpi_method(OpKind kind) {
  switch (kind) {
    case OpKind::all_reduce: return &mpi_all_reduce;
    case OpKind::reduce: return &mpi_reduce;
    case OpKind::broadcast: return &mpi_broadcast;
    case OpKind::reduce_scatter: return &mpi_reduce_scatter;
    case OpKind::all_gather: return &mpi_all_gather;
    case OpKind::gather: return &mpi_gather;
    case OpKind::scatter: return &mpi_scatter;
    case OpKind::all_to_all: return &mpi_all_to_all;
    default: return nullptr;  // send_recv is for pairs
  }
}

bool MpiTransfer::reserve(const Bucket& bucket, const Chunk& chunk, bool allocate) {
  bucket_ = &bucket;
  chunk_ = chunk;
  staged_ = !chunk.single && !(in_one_piece(&BucketTensor::in) && in_one_piece(&BucketTensor::out));
  find_tree();
  const bool packs = packs_input() || (signature().kind == OpKind::reduce && !is_root());
  const bool receives = this->receives();
  BufferPool& pool = group_.channel().staging();
  const std::size_t needed = (packs ? 1 : 0) + (receives ? 1 : 0), share = 2 * group_.channel().tuning().in_flight;
  if (!allocate && needed > pool.unused() && needed + pool.in_use() > share) return false;
  try {
    if (packs) packed_ = pool.take(group_.channel().buffer_bytes());
    if (receives) received_ = pool.take(group_.channel().buffer_bytes());
  } catch (const Error&) {
    release_staging(true);
    if (allocate) throw;
    return false;
  }
  return true;
}

/// Up to a few ranks send all values to where they are combined: that takes two rounds at most.
void MpiTransfer::find_tree() {
  tree_.clear();
  const OpKind kind = signature().kind;
  if ((kind != OpKind::all_reduce && kind != OpKind::reduce) || !group_.association().only_between_nodes()) return;
  const auto carried = carried_type(signature());
  const std::size_t present = static_cast<std::size_t>(ranks()) - bucket_->absent.size();
  if (!carried || present <= static_cast<std::size_t>(few())) return;
  const bool small = static_cast<std::int64_t>(bytes()) <= group_.channel().tuning().small;
  const bool fits = static_cast<std::size_t>(count()) * size_of(*carried) <= group_.channel().buffer_bytes();
  const bool even = (present & (present - 1)) == 0 || present > 8 * static_cast<std::size_t>(few());
  if (!fits || (!small && !even) || (kind == OpKind::reduce && (!small || is_absent(signature().root)))) return;
  carried_ = *carried;
  for (int rank = 0; rank < ranks(); ++rank) {
    if (!is_absent(rank)) tree_.push_back(rank);
  }
}

bool MpiTransfer::receives() const {
  return (reduces(signature().kind) && ranks() > 1) || (staged_ && has_blocks(signature().kind));
}

void MpiTransfer::release_staging(bool unused) noexcept {
  BufferPool& pool = group_.channel().staging();
  for (HostBuffer* buffer : {&packed_, &received_}) {
    if (buffer->data()) unused ? pool.give_back(std::move(*buffer)) : pool.leak(std::move(*buffer));
  }
}

void MpiTransfer::begin(int tag) {
  tag_ = tag;
  phase_ = 0;
  mpi_method(signature().kind)->begin(*this);
}

void MpiTransfer::proceed() {
  const MpiMethod* const method = mpi_method(signature().kind);
  if (method->proceed(*this)) {
    ++phase_;
    return;
  }
  method->finish(*this);
  release_staging(true);
  phase_ = no_phase;
  bucket_ = nullptr;
}

void MpiTransfer::give_up(std::chrono::steady_clock::time_point deadline) noexcept {
  release_staging(messages_.finished_by(deadline));
  bucket_ = nullptr;
}

bool MpiTransfer::travels_whole() const {
  if (ranks() == 2) return true;
  const MpiTuning& tuning = group_.channel().tuning();
  return static_cast<std::int64_t>(bytes()) <= tuning.small &&
         at(ranks()) <= static_cast<std::size_t>(tuning.chunks.largest + std::int64_t{64} * ranks());
}

bool MpiTransfer::fills_chain() const {
  return bucket_->bytes() / static_cast<std::size_t>(group_.channel().tuning().chunks.largest) >=
         static_cast<std::size_t>(ranks());
}

bool MpiTransfer::packs_input() const {
  if (staged_ || (!tree_.empty() && (carried_ != signature().dtype || signature().prescale != 1))) return true;
  return signature().kind == OpKind::all_to_all && first_tensor().in.data == first_tensor().out.data;
}

/// Calls copy(tensor, offset, bytes, place) for what the chunk consists of in the blocks that this rank has for, or
/// from, a peer; `place` counts from the first.
template <class Copy>
void MpiTransfer::for_each_segment_of(Block block_of, int peer, Copy copy) const {
  std::size_t place = 0;
  for_each_segment(*bucket_, ranks(), chunk_.position, chunk_.count, [&](const Segment& segment) {
    const BucketTensor& tensor = bucket_->tensors[segment.tensor];
    const ElementRange block = block_of(signature().kind, tensor, ranks(), rank(), peer);
    const std::int64_t count = std::min(segment.count, block.count() - segment.offset);
    if (count <= 0) return;
    const std::size_t bytes = static_cast<std::size_t>(count) * element_bytes();
    copy(tensor, block.begin + segment.offset, bytes, place);
    place += bytes;
  });
}

/// The chunk of a block: at `staging`, or, if that is null, in the one tensor of which the chunk is.
std::span<std::byte> MpiTransfer::block(Block block, Tensor BucketTensor::*side, std::byte* staging, int peer) const {
  std::span<std::byte> found(staging, 0);
  for_each_segment_of(block, peer,
                      [&](const BucketTensor& tensor, std::int64_t offset, std::size_t bytes, std::size_t place) {
                        found = {staging ? staging : address(tensor.*side, offset), place + bytes};
                      });
  return found;
}

std::span<std::byte> MpiTransfer::block_for(int peer) const {
  const bool one_for_all = traits(signature().kind).in == Rows::own;
  return block(in_block, &BucketTensor::in, packs_input() ? packed() + (one_for_all ? 0 : at(peer)) : nullptr, peer);
}

std::span<std::byte> MpiTransfer::block_from(int peer) const {
  return block(out_block, &BucketTensor::out, staged_ ? received() + at(peer) : nullptr, peer);
}

/// Whether the chunk lies in neighbouring memory on this rank although it is made of several tensors, as in an arena.
/// Only asked of operations without blocks; an output that is ignored is in no place.
bool MpiTransfer::in_one_piece(Tensor BucketTensor::*side) const {
  if (has_blocks(signature().kind)) return false;
  const bool ignored = side == &BucketTensor::out && signature().kind == OpKind::reduce && !is_root();
  const std::byte* end = nullptr;
  bool one = true;
  for_each_segment(*bucket_, ranks(), chunk_.position, chunk_.count, [&](const Segment& segment) {
    const std::byte* begin = address(bucket_->tensors[segment.tensor].*side, segment.offset);
    one = one && (!end || begin == end);
    end = begin + static_cast<std::size_t>(segment.count) * element_bytes();
  });
  return one || ignored;
}

void MpiTransfer::pack(int peer, std::byte* to) {
  for_each_segment_of(in_block, peer,
                      [&](const BucketTensor& tensor, std::int64_t offset, std::size_t bytes, std::size_t place) {
                        std::memcpy(to + place, address(tensor.in, offset), bytes);
                        staged_bytes_ += bytes;
                      });
}

void MpiTransfer::unpack(int peer, const std::byte* from) {
  for_each_segment_of(out_block, peer,
                      [&](const BucketTensor& tensor, std::int64_t offset, std::size_t bytes, std::size_t place) {
                        std::memcpy(address(tensor.out, offset), from + place, bytes);
                        staged_bytes_ += bytes;
                      });
}

void MpiTransfer::pack_input() {
  if (staged_) pack(rank(), packed());
}

void MpiTransfer::unpack_output(const std::byte* from) {
  if (staged_) unpack(rank(), from);
}

void MpiTransfer::pack_blocks() {
  if (!packs_input()) return;
  for (int peer = 0; peer < ranks(); ++peer) {
    if (staged_ || peer != rank()) pack(peer, packed() + at(peer));
  }
}

void MpiTransfer::unpack_blocks() {
  for (int peer = 0; staged_ && peer < ranks(); ++peer) unpack(peer, received() + at(peer));
}

void MpiTransfer::keep_own_block() {
  if (packs_input() && !staged_) return;  // in-place
  const std::span<const std::byte> from = block_for(rank());
  const std::span<std::byte> to = block_from(rank());
  if (!from.empty() && from.data() != to.data()) std::memcpy(to.data(), from.data(), from.size());
}

}  // namespace kolo
