// Every rank packs a segment of every rank's rows side by side and sends each rank its own (Ialltoallv); rank r then
// has its rows of all ranks, and reduces them in rank order. A block may be shorter than that of rank 0 by a row, and
// lack the end of the segment.

#include "ops/kernels/reduce.h"
#include "ops/mpi/transfer.h"

namespace kolo {
namespace {

void begin(MpiTransfer& transfer) {
  transfer.pack_blocks();
  const int mine = transfer.sent_bytes(transfer.group().rank);
  for (int rank = 0; rank < transfer.ranks(); ++rank) {
    const auto r = static_cast<std::size_t>(rank);
    transfer.send_counts[r] = transfer.sent_bytes(rank);
    transfer.counts[r] = mine;
    transfer.send_offsets[r] = transfer.offsets[r] = static_cast<int>(transfer.at(rank));
  }
  check_mpi(MPI_Ialltoallv(transfer.packed(), transfer.send_counts.data(), transfer.send_offsets.data(), MPI_BYTE,
                           transfer.received(), transfer.counts.data(), transfer.offsets.data(), MPI_BYTE,
                           transfer.group().exchange.get(), transfer.request()),
            "MPI_Ialltoallv");
}

void proceed(MpiTransfer& transfer) {
  const auto received = [&](int rank) -> const void* { return transfer.received() + transfer.at(rank); };
  void* const destination = transfer.packed();
  const int mine = transfer.sent_bytes(transfer.group().rank);
  reduce(transfer.reduction(), transfer.sources_of_present(received), {&destination, 1},
         static_cast<std::size_t>(mine) / transfer.element_bytes());
}

void finish(MpiTransfer& transfer) {
  transfer.unpack_own_block(transfer.packed());
}

}  // namespace

constinit const MpiMethod mpi_reduce_scatter{begin, proceed, finish};

}  // namespace kolo
