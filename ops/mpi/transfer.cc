#include "ops/mpi/transfer.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

namespace kolo {

MpiGroup::MpiGroup(MPI_Comm comm) : exchange(duplicate(comm)), gather(duplicate(comm)) {
  check_mpi(MPI_Comm_rank(exchange.get(), &rank), "MPI_Comm_rank");
  check_mpi(MPI_Comm_size(exchange.get(), &ranks), "MPI_Comm_size");
}

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
    default: return nullptr;  // pair.h has send_recv
  }
}

MpiTransfer::MpiTransfer(const MpiGroup& group, const MpiTuning& tuning)
    : group_(group),
      tuning_(tuning),
      // A line for each rank: slices are rounded up to lines, and a chunk has an element of each rank's block at
      // least.
      packed_(static_cast<std::size_t>(tuning.chunks.largest + std::int64_t{64} * group.ranks)),
      received_(static_cast<std::size_t>(tuning.chunks.largest + std::int64_t{64} * group.ranks)) {
  const auto ranks = static_cast<std::size_t>(group.ranks);
  for (auto* list : {&counts, &offsets, &send_counts, &send_offsets}) list->resize(ranks);
  sources_.reserve(ranks);
}

void MpiTransfer::begin(const Bucket& bucket, const Chunk& chunk) {
  bucket_ = &bucket;
  chunk_ = chunk;
  const bool direct = chunk.single || (in_one_piece(&BucketTensor::in) && in_one_piece(&BucketTensor::out));
  staged_ = !direct;
  mpi_method(bucket.signature.kind)->begin(*this);
}

void MpiTransfer::finish() {
  mpi_method(signature().kind)->finish(*this);
  bucket_ = nullptr;
}

bool MpiTransfer::arrived() {
  if (request_ == MPI_REQUEST_NULL) return true;
  int done = 0;
  check_mpi(MPI_Test(&request_, &done, MPI_STATUS_IGNORE), "MPI_Test");
  return done != 0;
}

void MpiTransfer::leak() noexcept {
  packed_.leak();
  received_.leak();
  // MPI may also read the lists of counts: they are given up, not freed.
  for (auto* list : {&counts, &offsets, &send_counts, &send_offsets}) {
    (void)new (std::nothrow) std::vector<int>(std::move(*list));
  }
}

bool MpiTransfer::travels_whole() const {
  return bytes() <= tuning_.small &&
         static_cast<std::size_t>(bytes()) * static_cast<std::size_t>(ranks()) <= received_.size();
}

/// Calls copy(tensor, offset, bytes, place) for what the chunk consists of in the blocks that this rank has for, or
/// from, a peer; `place` counts from the first.
template <class Copy>
void MpiTransfer::for_each_segment_of(Block block_of, int peer, Copy copy) const {
  std::size_t place = 0;
  for_each_segment(*bucket_, ranks(), chunk_.position, chunk_.count, [&](const Segment& segment) {
    const BucketTensor& tensor = bucket_->tensors[segment.tensor];
    const ElementRange block = block_of(signature().kind, tensor, ranks(), group_.rank, peer);
    const std::int64_t count = std::min(segment.count, block.count() - segment.offset);
    if (count <= 0) return;
    const std::size_t bytes = static_cast<std::size_t>(count) * element_bytes();
    copy(tensor, block.begin + segment.offset, bytes, place);
    place += bytes;
  });
}

int MpiTransfer::bytes_of(Block block, int peer) const {
  std::size_t sum = 0;
  for_each_segment_of(block, peer,
                      [&](const BucketTensor&, std::int64_t, std::size_t bytes, std::size_t) { sum += bytes; });
  return static_cast<int>(sum);
}

int MpiTransfer::sent_bytes(int to) const {
  return bytes_of(in_block, to);
}
int MpiTransfer::received_bytes(int from) const {
  return bytes_of(out_block, from);
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

/// Calls move(tensor, offset, bytes, place) for each segment.
template <class Move>
void MpiTransfer::stage(Block block, int peer, Move move) {
  for_each_segment_of(block, peer,
                      [&](const BucketTensor& tensor, std::int64_t offset, std::size_t bytes, std::size_t place) {
                        move(tensor, offset, bytes, place);
                        staged_bytes_ += bytes;
                      });
}

void MpiTransfer::pack_input() {
  if (!staged_) return;
  stage(in_block, group_.rank,
        [&](const BucketTensor& tensor, std::int64_t offset, std::size_t bytes, std::size_t place) {
          std::memcpy(packed() + place, address(tensor.in, offset), bytes);
        });
}

void MpiTransfer::unpack_output() {
  if (staged_) unpack_own_block(packed());
}

void MpiTransfer::unpack_own_block(const std::byte* from) {
  stage(out_block, group_.rank,
        [&](const BucketTensor& tensor, std::int64_t offset, std::size_t bytes, std::size_t place) {
          std::memcpy(address(tensor.out, offset), from + place, bytes);
        });
}

void MpiTransfer::pack_blocks() {
  for (int rank = 0; rank < ranks(); ++rank) {
    stage(in_block, rank, [&](const BucketTensor& tensor, std::int64_t offset, std::size_t bytes, std::size_t place) {
      std::memcpy(packed() + at(rank) + place, address(tensor.in, offset), bytes);
    });
  }
}

void MpiTransfer::unpack_blocks() {
  for (int rank = 0; rank < ranks(); ++rank) {
    stage(out_block, rank, [&](const BucketTensor& tensor, std::int64_t offset, std::size_t bytes, std::size_t place) {
      std::memcpy(address(tensor.out, offset), received() + at(rank) + place, bytes);
    });
  }
}

}  // namespace kolo
