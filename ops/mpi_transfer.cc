#include "ops/mpi_transfer.h"

#include <utility>

namespace kolo {

MpiGroup::MpiGroup(MPI_Comm comm) : exchange(duplicate(comm)), gather(duplicate(comm)) {
  check_mpi(MPI_Comm_rank(exchange.get(), &rank), "MPI_Comm_rank");
  check_mpi(MPI_Comm_size(exchange.get(), &ranks), "MPI_Comm_size");
}

MpiTransfer::MpiTransfer(const MpiGroup& group, const MpiTuning& tuning)
    : group_(group),
      tuning_(tuning),
      packed_(Device{}, static_cast<std::size_t>(tuning.segments.largest)),
      received_(Device{}, static_cast<std::size_t>(tuning.segments.largest + 64 * group.ranks)) {
  const auto ranks = static_cast<std::size_t>(group.ranks);
  for (auto* list : {&counts_, &offsets_, &slice_counts_, &slice_offsets_}) list->resize(ranks);
  sources_.resize(ranks);
}

void MpiTransfer::begin(const Bucket& bucket, const Segment& segment) {
  bucket_ = &bucket;
  segment_ = segment;
  staged_ = !segment.single || bucket.signature.device != DeviceKind::cpu;
  input_ = staged_ ? packed_.data() : address(first_tensor().in, segment.position.offset);
  output_ = staged_ ? packed_.data() : address(first_tensor().out, segment.position.offset);
  if (bucket.signature.kind == OpKind::broadcast)
    begin_broadcast();
  else
    begin_all_reduce();
}

void MpiTransfer::proceed() {
  if (bucket_->signature.kind == OpKind::all_reduce) proceed_all_reduce();
}

void MpiTransfer::finish() {
  if (bucket_->signature.kind == OpKind::broadcast)
    finish_broadcast();
  else
    unpack_output();
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
  for (auto* list : {&counts_, &offsets_, &slice_counts_, &slice_offsets_}) {
    (void)new (std::nothrow) std::vector<int>(std::move(*list));
  }
}

const std::byte* MpiTransfer::packed_input() {
  if (!staged_) return input_;
  const DeviceMemory& memory = *device_memory(bucket_->signature.device);
  std::byte* packed = packed_.data();
  for_each_piece(*bucket_, segment_.position, segment_.count, [&](const Piece& piece) {
    const std::size_t bytes = static_cast<std::size_t>(piece.count) * element_bytes();
    memory.copy(packed, address(bucket_->tensors[piece.tensor].in, piece.offset), bytes);
    packed += bytes;
  });
  return input_;
}

void MpiTransfer::unpack_output() {
  if (!staged_) return;
  const DeviceMemory& memory = *device_memory(bucket_->signature.device);
  const std::byte* packed = packed_.data();
  for_each_piece(*bucket_, segment_.position, segment_.count, [&](const Piece& piece) {
    const std::size_t bytes = static_cast<std::size_t>(piece.count) * element_bytes();
    memory.copy(address(bucket_->tensors[piece.tensor].out, piece.offset), packed, bytes);
    packed += bytes;
  });
}

}  // namespace kolo
