#include "ops/mpi/slices.h"

#include "ops/kernels/reduce.h"

namespace kolo {

Slice slice_of_rank(const MpiTransfer& transfer, int rank) {
  return slice_of(transfer.count(), transfer.element_bytes(), transfer.ranks(), rank);
}

void exchange_slices(MpiTransfer& transfer) {
  const std::size_t size = transfer.element_bytes();
  const int mine =
      static_cast<int>(static_cast<std::size_t>(slice_of_rank(transfer, transfer.group().rank).count()) * size);
  int others = 0;
  for (int rank = 0; rank < transfer.ranks(); ++rank) {
    const auto r = static_cast<std::size_t>(rank);
    const bool self = rank == transfer.group().rank;  // the own slice stays where it is
    const Slice slice = slice_of_rank(transfer, rank);
    transfer.send_offsets[r] = static_cast<int>(static_cast<std::size_t>(slice.begin) * size);
    transfer.send_counts[r] = self ? 0 : static_cast<int>(static_cast<std::size_t>(slice.count()) * size);
    transfer.offsets[r] = others * mine;
    transfer.counts[r] = self ? 0 : mine;
    if (!self) ++others;
  }
  check_mpi(MPI_Ialltoallv(transfer.input(), transfer.send_counts.data(), transfer.send_offsets.data(), MPI_BYTE,
                           transfer.received(), transfer.counts.data(), transfer.offsets.data(), MPI_BYTE,
                           transfer.group().exchange.get(), transfer.request()),
            "MPI_Ialltoallv");
}

void count_own_slice(MpiTransfer& transfer) {
  const Slice mine = slice_of_rank(transfer, transfer.group().rank);
  transfer.send_counts[static_cast<std::size_t>(transfer.group().rank)] =
      static_cast<int>(static_cast<std::size_t>(mine.count()) * transfer.element_bytes());
}

void reduce_received(MpiTransfer& transfer, std::byte* to) {
  const bool whole = transfer.ranks() == 1 || transfer.travels_whole();
  const Slice mine = whole ? Slice{0, transfer.count()} : slice_of_rank(transfer, transfer.group().rank);
  const std::size_t begin = static_cast<std::size_t>(mine.begin) * transfer.element_bytes();
  const auto received = [&](int rank) -> const void* {
    if (rank == transfer.group().rank) return transfer.input() + begin;
    return transfer.received() +
           (whole ? transfer.at(rank) : static_cast<std::size_t>(transfer.offsets[static_cast<std::size_t>(rank)]));
  };
  void* const destination = to + begin;
  reduce(transfer.reduction(), transfer.sources_of_present(received), {&destination, 1},
         static_cast<std::size_t>(mine.count()));
}

}  // namespace kolo
