// Operations that only copy.

#include <cstring>

#include "ops/mpi/transfer.h"

namespace kolo {
namespace {

void nothing(MpiTransfer&) {}

// The root sends a chunk of its input; the others receive it into their output. Packed chunks pass through staging.

void begin_broadcast(MpiTransfer& transfer) {
  if (transfer.is_root()) transfer.pack_input();
  if (transfer.ranks() == 1) return;
  std::byte* values = transfer.is_root() ? transfer.input() : transfer.output();  // not written on the root
  check_mpi(MPI_Ibcast(values, transfer.bytes(), MPI_BYTE, transfer.signature().root, transfer.group().exchange.get(),
                       transfer.request()),
            "MPI_Ibcast");
}

void finish_broadcast(MpiTransfer& transfer) {
  transfer.unpack_output();
  const bool copy_on_root = transfer.is_root() && !transfer.staged() && transfer.input() != transfer.output();
  if (copy_on_root) std::memcpy(transfer.output(), transfer.input(), static_cast<std::size_t>(transfer.bytes()));
}

// Every rank sends a chunk of its block to all ranks (Iallgatherv) or to the root (Igatherv). Blocks arrive side by
// side in staging, because in the output they are as far apart as blocks are long, which may be more than an int
// counts.

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

void finish_all_gather(MpiTransfer& transfer) {
  transfer.unpack_blocks();
}

void finish_gather(MpiTransfer& transfer) {
  if (transfer.is_root()) transfer.unpack_blocks();
}

// The root packs a chunk of every rank's rows side by side and sends each rank its own (Iscatterv). A block may be
// shorter than that of rank 0 by a row, and lack the end of the chunk.

void begin_scatter(MpiTransfer& transfer) {
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

void finish_scatter(MpiTransfer& transfer) {
  transfer.unpack_own_block(transfer.received());
}

// Every rank packs a chunk of each of its blocks side by side, sends block r to rank r (Ialltoallv), and unpacks what
// arrives into the same places of the output: what this overwrites, if the output is the input, has been sent.

void begin_all_to_all(MpiTransfer& transfer) {
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

void finish_all_to_all(MpiTransfer& transfer) {
  transfer.unpack_blocks();
}

}  // namespace

constinit const MpiMethod mpi_broadcast{begin_broadcast, nothing, finish_broadcast};
constinit const MpiMethod mpi_all_gather{begin_all_gather, nothing, finish_all_gather};
constinit const MpiMethod mpi_gather{begin_gather, nothing, finish_gather};
constinit const MpiMethod mpi_scatter{begin_scatter, nothing, finish_scatter};
constinit const MpiMethod mpi_all_to_all{begin_all_to_all, nothing, finish_all_to_all};

}  // namespace kolo
