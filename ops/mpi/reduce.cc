// Like all_reduce, but towards one rank. A small segment: every rank sends all of it to the root (Igather), which
// reduces it. A larger one: rank r gets slice r of every other rank (Ialltoallv), reduces these and its own in rank
// order, and sends the result to the root (Igatherv). Ranks that are not the root have no output: they reduce into
// staging.

#include "ops/mpi/slices.h"

namespace kolo {
namespace {

std::byte* result(const MpiTransfer& transfer) {
  return transfer.is_root() ? transfer.output() : transfer.packed();
}

void begin(MpiTransfer& transfer) {
  transfer.pack_input();
  if (transfer.ranks() == 1) return;
  if (!transfer.travels_whole()) return exchange_slices(transfer);
  check_mpi(MPI_Igather(transfer.input(), transfer.bytes(), MPI_BYTE, transfer.received(), transfer.bytes(), MPI_BYTE,
                        transfer.signature().root, transfer.group().exchange.get(), transfer.request()),
            "MPI_Igather");
}

void proceed(MpiTransfer& transfer) {
  const bool whole = transfer.ranks() == 1 || transfer.travels_whole();
  if (!whole || transfer.is_root()) reduce_received(transfer, result(transfer));
  if (whole) return;
  count_own_slice(transfer);
  const auto own = static_cast<std::size_t>(transfer.group().rank);
  const void* send = transfer.is_root() ? MPI_IN_PLACE : result(transfer) + transfer.send_offsets[own];
  check_mpi(MPI_Igatherv(send, transfer.send_counts[own], MPI_BYTE, result(transfer), transfer.send_counts.data(),
                         transfer.send_offsets.data(), MPI_BYTE, transfer.signature().root,
                         transfer.group().gather.get(), transfer.request()),
            "MPI_Igatherv");
}

void finish(MpiTransfer& transfer) {
  if (transfer.is_root()) transfer.unpack_output();
}

}  // namespace

constinit const MpiMethod mpi_reduce{begin, proceed, finish};

}  // namespace kolo
