// Every rank packs a segment of each of its blocks side by side, sends block r to rank r (Ialltoall), and unpacks what
// arrives into the same places of the output: what this overwrites, if the output is the input, has been sent.

#include "ops/mpi_transfer.h"

namespace kolo {
namespace {

void begin(MpiTransfer& transfer) {
  transfer.pack_blocks();
  check_mpi(MPI_Ialltoall(transfer.packed(), transfer.bytes(), MPI_BYTE, transfer.received(), transfer.bytes(),
                          MPI_BYTE, transfer.group().exchange.get(), transfer.request()),
            "MPI_Ialltoall");
}

void proceed(MpiTransfer&) {}

void finish(MpiTransfer& transfer) {
  transfer.unpack_blocks();
}

}  // namespace

constinit const MpiMethod mpi_all_to_all{begin, proceed, finish};

}  // namespace kolo
