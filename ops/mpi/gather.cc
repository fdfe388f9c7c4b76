// Every rank sends a segment of its block to all ranks (Iallgatherv) or to the root (Igatherv). Blocks arrive side by
// side in staging, because in the output they are as far apart as blocks are long, which may be more than an int
// counts.

#include "ops/mpi/transfer.h"

namespace kolo {
namespace {

void count_received(MpiTransfer& transfer) {
  for (int rank = 0; rank < transfer.ranks(); ++rank) {
    transfer.counts[static_cast<std::size_t>(rank)] = transfer.received_bytes(rank);
    transfer.offsets[static_cast<std::size_t>(rank)] = static_cast<int>(transfer.at(rank));
  }
}

void begin_all_gather(MpiTransfer& transfer) {
  transfer.pack_input();
  count_received(transfer);
  check_mpi(MPI_Iallgatherv(transfer.input(), transfer.sent_bytes(transfer.group().rank), MPI_BYTE, transfer.received(),
                            transfer.counts.data(), transfer.offsets.data(), MPI_BYTE, transfer.group().exchange.get(),
                            transfer.request()),
            "MPI_Iallgatherv");
}

void begin_gather(MpiTransfer& transfer) {
  transfer.pack_input();
  count_received(transfer);
  check_mpi(MPI_Igatherv(transfer.input(), transfer.sent_bytes(transfer.group().rank), MPI_BYTE, transfer.received(),
                         transfer.counts.data(), transfer.offsets.data(), MPI_BYTE, transfer.signature().root,
                         transfer.group().exchange.get(), transfer.request()),
            "MPI_Igatherv");
}

void proceed(MpiTransfer&) {}

void finish_all_gather(MpiTransfer& transfer) {
  transfer.unpack_blocks();
}

void finish_gather(MpiTransfer& transfer) {
  if (transfer.is_root()) transfer.unpack_blocks();
}

}  // namespace

constinit const MpiMethod mpi_all_gather{begin_all_gather, proceed, finish_all_gather};
constinit const MpiMethod mpi_gather{begin_gather, proceed, finish_gather};

}  // namespace kolo
