// Every rank packs a segment of each of its blocks side by side, sends block r to rank r (Ialltoallv), and unpacks what
// arrives into the same places of the output: what this overwrites, if the output is the input, has been sent.

#include "ops/mpi/transfer.h"

namespace kolo {
namespace {

void begin(MpiTransfer& transfer) {
  transfer.pack_blocks();
  for (int rank = 0; rank < transfer.ranks(); ++rank) {
    const auto r = static_cast<std::size_t>(rank);
    transfer.send_counts[r] = transfer.sent_bytes(rank);
    transfer.counts[r] = transfer.received_bytes(rank);
    transfer.send_offsets[r] = transfer.offsets[r] = static_cast<int>(transfer.at(rank));
  }
  check_mpi(MPI_Ialltoallv(transfer.packed(), transfer.send_counts.data(), transfer.send_offsets.data(), MPI_BYTE,
                           transfer.received(), transfer.counts.data(), transfer.offsets.data(), MPI_BYTE,
                           transfer.group().exchange.get(), transfer.request()),
            "MPI_Ialltoallv");
}

void proceed(MpiTransfer&) {}

void finish(MpiTransfer& transfer) {
  transfer.unpack_blocks();
}

}  // namespace

constinit const MpiMethod mpi_all_to_all{begin, proceed, finish};

}  // namespace kolo
