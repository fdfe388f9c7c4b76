// A small segment: every rank sends all of it to every rank (Iallgather), and all reduce it the same way. A larger one:
// rank r gets slice r of every other rank (Ialltoallv), reduces these and its own in rank order, and sends the result
// to all (Iallgatherv): every element crosses the wire twice, and is added once. Not MPI_Allreduce: its order of
// addition changes with an element's place.

#include "ops/mpi/slices.h"

namespace kolo {
namespace {

void begin(MpiTransfer& transfer) {
  transfer.pack_input();
  if (transfer.ranks() == 1) return;
  if (!transfer.travels_whole()) return exchange_slices(transfer);
  check_mpi(MPI_Iallgather(transfer.input(), transfer.bytes(), MPI_BYTE, transfer.received(), transfer.bytes(),
                           MPI_BYTE, transfer.group().exchange.get(), transfer.request()),
            "MPI_Iallgather");
}

void proceed(MpiTransfer& transfer) {
  reduce_received(transfer, transfer.output());
  if (transfer.ranks() == 1 || transfer.travels_whole()) return;
  count_own_slice(transfer);
  check_mpi(MPI_Iallgatherv(MPI_IN_PLACE, 0, MPI_BYTE, transfer.output(), transfer.send_counts.data(),
                            transfer.send_offsets.data(), MPI_BYTE, transfer.group().gather.get(), transfer.request()),
            "MPI_Iallgatherv");
}

void finish(MpiTransfer& transfer) {
  transfer.unpack_output();
}

}  // namespace

constinit const MpiMethod mpi_all_reduce{begin, proceed, finish};

}  // namespace kolo
