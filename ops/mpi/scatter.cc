// The root packs a segment of every rank's rows side by side and sends each rank its own (Iscatterv). A block may be
// shorter than that of rank 0 by a row, and lack the end of the segment.

#include "ops/mpi/transfer.h"

namespace kolo {
namespace {

void begin(MpiTransfer& transfer) {
  if (transfer.is_root()) transfer.pack_blocks();
  for (int rank = 0; rank < transfer.ranks(); ++rank) {
    transfer.send_counts[static_cast<std::size_t>(rank)] = transfer.sent_bytes(rank);
    transfer.send_offsets[static_cast<std::size_t>(rank)] = static_cast<int>(transfer.at(rank));
  }
  check_mpi(MPI_Iscatterv(transfer.packed(), transfer.send_counts.data(), transfer.send_offsets.data(), MPI_BYTE,
                          transfer.received(), transfer.received_bytes(transfer.signature().root), MPI_BYTE,
                          transfer.signature().root, transfer.group().exchange.get(), transfer.request()),
            "MPI_Iscatterv");
}

void proceed(MpiTransfer&) {}

void finish(MpiTransfer& transfer) {
  transfer.unpack_own_block(transfer.received());
}

}  // namespace

constinit const MpiMethod mpi_scatter{begin, proceed, finish};

}  // namespace kolo
