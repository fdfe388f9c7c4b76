// Every rank sends a segment of its block to all ranks (Iallgather) or to the root (Igather). Blocks arrive side by
// side in staging, because in the output they are as far apart as blocks are long, which may be more than an int
// counts.

#include "ops/mpi_transfer.h"

namespace kolo {
namespace {

void begin_all_gather(MpiTransfer& transfer) {
  transfer.pack_input();
  check_mpi(MPI_Iallgather(transfer.input(), transfer.bytes(), MPI_BYTE, transfer.received(), transfer.bytes(),
                           MPI_BYTE, transfer.group().exchange.get(), transfer.request()),
            "MPI_Iallgather");
}

void begin_gather(MpiTransfer& transfer) {
  transfer.pack_input();
  check_mpi(MPI_Igather(transfer.input(), transfer.bytes(), MPI_BYTE, transfer.received(), transfer.bytes(), MPI_BYTE,
                        transfer.signature().root, transfer.group().exchange.get(), transfer.request()),
            "MPI_Igather");
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
