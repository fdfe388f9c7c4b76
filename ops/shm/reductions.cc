// A small bucket: every rank shows all of its input, and those who want the result combine all inputs themselves. A
// larger one: every rank shows the slices of a chunk that others combine; rank r combines slice r of all inputs, its
// own straight from its tensor, into its slot (at the place of slice r, which nothing else uses) and its output; then
// the others fetch it from there. Of reduce_scatter every rank shows the rows of the others, and combines its own rows
// into its output. Where ranks read each other's tensors nothing is packed, and all else is the same.

#include "ops/shm/transfer.h"

namespace kolo {
namespace {

/// Calls visit(rank, slice, position) for the slices of the chunk that ranks combine; it returns where the next one
/// begins.
template <class Visit>
void for_each_slice(const ShmTransfer& transfer, Visit visit) {
  BucketPosition position = transfer.position();
  for (int rank = 0; rank < transfer.ranks(); ++rank) position = visit(rank, transfer.slice(rank), position);
}

void pack_everything(ShmTransfer& transfer) {
  if (transfer.ranks() == 1 || !transfer.present(transfer.rank())) return;
  transfer.for_each_segment(
      transfer.position(), {0, transfer.count()},
      [&](const BucketTensor& tensor, std::int64_t offset, std::int64_t count, std::size_t place) {
        transfer.put(transfer.slot(transfer.rank()) + place, tensor.in, offset, count);
      });
}

void combine_everything(ShmTransfer& transfer) {
  transfer.for_each_segment(
      transfer.position(), {0, transfer.count()},
      [&](const BucketTensor& tensor, std::int64_t offset, std::int64_t count, std::size_t place) {
        const auto source = [&](int rank) { return transfer.input_of(rank, tensor, offset, count, place); };
        transfer.combine(tensor, offset, count, source, nullptr, address(tensor.out, offset));
      });
}

void pack_for_root(ShmTransfer& transfer) {
  if (!transfer.is_root()) pack_everything(transfer);
}

void combine_on_root(ShmTransfer& transfer) {
  if (transfer.is_root()) combine_everything(transfer);
}

void pack_slices(ShmTransfer& transfer) {
  const bool shows = transfer.present(transfer.rank());
  for_each_slice(transfer, [&](int rank, ElementRange slice, BucketPosition position) {
    const bool needed = shows && rank != transfer.rank();
    return transfer.for_each_segment(
        position, slice, [&](const BucketTensor& tensor, std::int64_t offset, std::int64_t count, std::size_t place) {
          if (needed) transfer.put(transfer.slot(transfer.rank()) + place, tensor.in, offset, count);
        });
  });
}

/// Combines this rank's slice: into its slot if others want it, into its output if it does.
void combine_slice(ShmTransfer& transfer, bool show, bool write) {
  transfer.for_each_own_segment(
      [&](const BucketTensor& tensor, std::int64_t offset, std::int64_t count, std::size_t place) {
        const auto source = [&](int rank) { return transfer.input_of(rank, tensor, offset, count, place); };
        transfer.combine(tensor, offset, count, source, show ? transfer.slot(transfer.rank()) + place : nullptr,
                         write ? address(tensor.out, offset) : nullptr);
      });
}

void combine_for_all(ShmTransfer& transfer) {
  combine_slice(transfer, true, true);
}
void combine_for_root(ShmTransfer& transfer) {
  combine_slice(transfer, !transfer.is_root(), transfer.is_root());
}

void collect_slices(ShmTransfer& transfer) {
  for_each_slice(transfer, [&](int rank, ElementRange slice, BucketPosition position) {
    return transfer.for_each_segment(
        position, slice, [&](const BucketTensor& tensor, std::int64_t offset, std::int64_t count, std::size_t place) {
          if (rank != transfer.rank()) transfer.write(tensor, offset, count, transfer.slot(rank) + place);
        });
  });
}

void collect_on_root(ShmTransfer& transfer) {
  if (transfer.is_root()) collect_slices(transfer);
}

void pack_rows(ShmTransfer& transfer) {
  if (transfer.present(transfer.rank())) shm_pack_parts(transfer);
}

void combine_rows(ShmTransfer& transfer) {
  const int me = transfer.rank();
  transfer.for_each_segment_of_block(
      in_block, me, [&](const BucketTensor& tensor, std::int64_t offset, std::int64_t count, std::size_t place) {
        const auto source = [&](int rank) {
          return transfer.input_of(rank, tensor, offset, count, transfer.part(me) + place);
        };
        const std::int64_t first = in_block(OpKind::reduce_scatter, tensor, transfer.ranks(), me, me).begin;
        transfer.combine(tensor, offset, count, source, nullptr, address(tensor.out, offset - first));
      });
}

}  // namespace

constinit const ShmMethod shm_all_reduce{pack_slices, combine_for_all, collect_slices};
constinit const ShmMethod shm_all_reduce_whole{pack_everything, nullptr, combine_everything};
constinit const ShmMethod shm_reduce{pack_slices, combine_for_root, collect_on_root};
constinit const ShmMethod shm_reduce_whole{pack_for_root, nullptr, combine_on_root};
constinit const ShmMethod shm_reduce_scatter{pack_rows, nullptr, combine_rows};
constinit const ShmMethod shm_all_reduce_reading{nullptr, combine_for_all, collect_slices};
constinit const ShmMethod shm_reduce_reading{nullptr, combine_for_root, collect_on_root};
constinit const ShmMethod shm_reduce_scatter_reading{nullptr, combine_rows, nullptr, false};

}  // namespace kolo
