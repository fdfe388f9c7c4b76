// Operations that combine the ranks' values.

#include "ops/kernels/reduce.h"
#include "ops/mpi/transfer.h"

namespace kolo {
namespace {

/// ElementRange `rank` of a chunk: what that rank reduces. In elements of the chunk.
ElementRange slice_of_rank(const MpiTransfer& transfer, int rank) {
  return slice_of(transfer.count(), transfer.element_bytes(), transfer.ranks(), rank);
}

/// Starts the exchange of slices on MpiGroup::exchange: each rank receives its slice of every other rank's input().
/// Leaves in send_counts and send_offsets how long the slices are and where they begin, this rank's counting as empty.
void exchange_slices(MpiTransfer& transfer) {
  const std::size_t size = transfer.element_bytes();
  const int mine =
      static_cast<int>(static_cast<std::size_t>(slice_of_rank(transfer, transfer.group().rank).count()) * size);
  int others = 0;
  for (int rank = 0; rank < transfer.ranks(); ++rank) {
    const auto r = static_cast<std::size_t>(rank);
    const bool self = rank == transfer.group().rank;  // the own slice stays where it is
    const ElementRange slice = slice_of_rank(transfer, rank);
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

/// Puts the length of this rank's slice into send_counts too: for a second phase that gathers slices. Only once the
/// exchange has arrived.
void count_own_slice(MpiTransfer& transfer) {
  const ElementRange mine = slice_of_rank(transfer, transfer.group().rank);
  transfer.send_counts[static_cast<std::size_t>(transfer.group().rank)] =
      static_cast<int>(static_cast<std::size_t>(mine.count()) * transfer.element_bytes());
}

/// Reduces this rank's slice, or all of the chunk if it travels whole, in rank order: the inputs received and this
/// rank's own input(). `to` stands for the begin of the chunk.
void reduce_received(MpiTransfer& transfer, std::byte* to) {
  const bool whole = transfer.ranks() == 1 || transfer.travels_whole();
  const ElementRange mine = whole ? ElementRange{0, transfer.count()} : slice_of_rank(transfer, transfer.group().rank);
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

// A small chunk: every rank sends all of it to every rank (Iallgather), and all reduce it the same way. A larger one:
// rank r gets slice r of every other rank (Ialltoallv), reduces these and its own in rank order, and sends the result
// to all (Iallgatherv): every element crosses the wire twice, and is added once. Not MPI_Allreduce: its order of
// addition changes with an element's place.

void begin_all_reduce(MpiTransfer& transfer) {
  transfer.pack_input();
  if (transfer.ranks() == 1) return;
  if (!transfer.travels_whole()) return exchange_slices(transfer);
  check_mpi(MPI_Iallgather(transfer.input(), transfer.bytes(), MPI_BYTE, transfer.received(), transfer.bytes(),
                           MPI_BYTE, transfer.group().exchange.get(), transfer.request()),
            "MPI_Iallgather");
}

void proceed_all_reduce(MpiTransfer& transfer) {
  reduce_received(transfer, transfer.output());
  if (transfer.ranks() == 1 || transfer.travels_whole()) return;
  count_own_slice(transfer);
  check_mpi(MPI_Iallgatherv(MPI_IN_PLACE, 0, MPI_BYTE, transfer.output(), transfer.send_counts.data(),
                            transfer.send_offsets.data(), MPI_BYTE, transfer.group().gather.get(), transfer.request()),
            "MPI_Iallgatherv");
}

void finish_all_reduce(MpiTransfer& transfer) {
  transfer.unpack_output();
}

// Like all_reduce, but towards one rank. A small chunk: every rank sends all of it to the root (Igather), which
// reduces it. A larger one: rank r gets slice r of every other rank (Ialltoallv), reduces these and its own in rank
// order, and sends the result to the root (Igatherv). Ranks that are not the root have no output: they reduce into
// staging.

std::byte* result(const MpiTransfer& transfer) {
  return transfer.is_root() ? transfer.output() : transfer.packed();
}

void begin_reduce(MpiTransfer& transfer) {
  transfer.pack_input();
  if (transfer.ranks() == 1) return;
  if (!transfer.travels_whole()) return exchange_slices(transfer);
  check_mpi(MPI_Igather(transfer.input(), transfer.bytes(), MPI_BYTE, transfer.received(), transfer.bytes(), MPI_BYTE,
                        transfer.signature().root, transfer.group().exchange.get(), transfer.request()),
            "MPI_Igather");
}

void proceed_reduce(MpiTransfer& transfer) {
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

void finish_reduce(MpiTransfer& transfer) {
  if (transfer.is_root()) transfer.unpack_output();
}

// Every rank packs a chunk of every rank's rows side by side and sends each rank its own (Ialltoallv); rank r then
// has its rows of all ranks, and reduces them in rank order. A block may be shorter than that of rank 0 by a row, and
// lack the end of the chunk.

void begin_reduce_scatter(MpiTransfer& transfer) {
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

void proceed_reduce_scatter(MpiTransfer& transfer) {
  const auto received = [&](int rank) -> const void* { return transfer.received() + transfer.at(rank); };
  void* const destination = transfer.packed();
  const int mine = transfer.sent_bytes(transfer.group().rank);
  reduce(transfer.reduction(), transfer.sources_of_present(received), {&destination, 1},
         static_cast<std::size_t>(mine) / transfer.element_bytes());
}

void finish_reduce_scatter(MpiTransfer& transfer) {
  transfer.unpack_own_block(transfer.packed());
}

}  // namespace

constinit const MpiMethod mpi_all_reduce{begin_all_reduce, proceed_all_reduce, finish_all_reduce};
constinit const MpiMethod mpi_reduce{begin_reduce, proceed_reduce, finish_reduce};
constinit const MpiMethod mpi_reduce_scatter{begin_reduce_scatter, proceed_reduce_scatter, finish_reduce_scatter};

}  // namespace kolo
