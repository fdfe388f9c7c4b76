// How values that are combined travel: directly to where that is done, or as partial sums along a tree (tree_sums.cc).
// For the order of messages see methods.cc.

#include "ops/mpi/transfer.h"
#include "ops/mpi/tree_sums.h"

namespace kolo {
namespace {

ElementRange slice_of_rank(const MpiTransfer& transfer, int rank) {
  return slice_of(transfer.count(), transfer.element_bytes(), transfer.ranks(), rank);
}

/// Slice `rank` of a chunk that begins at `begin`: what that rank reduces.
std::span<std::byte> slice(const MpiTransfer& transfer, std::byte* begin, int rank) {
  const ElementRange range = slice_of_rank(transfer, rank);
  const std::size_t size = transfer.element_bytes();
  return {begin + static_cast<std::size_t>(range.begin) * size, static_cast<std::size_t>(range.count()) * size};
}

/// Where the inputs of rank `rank` arrive: all of the chunk, or this rank's slice.
std::span<std::byte> arrival(const MpiTransfer& transfer, int rank) {
  if (transfer.travels_whole())
    return {transfer.received() + (transfer.ranks() == 2 ? 0 : transfer.at(rank)), transfer.bytes()};
  const std::size_t bytes = slice(transfer, transfer.received(), transfer.rank()).size();
  return {transfer.received() + static_cast<std::size_t>(rank) * bytes, bytes};
}

/// Each rank gets its slice of every other rank's input().
void exchange_slices(MpiTransfer& transfer) {
  transfer.for_each_peer([&](int peer) { transfer.receive(peer, arrival(transfer, peer)); });
  transfer.for_each_peer([&](int peer) { transfer.send(peer, slice(transfer, transfer.input(), peer)); });
}

/// Reduces this rank's slice, or all of the chunk if it travels whole: the inputs received and this rank's own
/// input(). `to` stands for the begin of the chunk.
void reduce_received(MpiTransfer& transfer, std::byte* to) {
  const bool whole = transfer.ranks() == 1 || transfer.travels_whole();
  const ElementRange mine = whole ? ElementRange{0, transfer.count()} : slice_of_rank(transfer, transfer.rank());
  const std::size_t begin = static_cast<std::size_t>(mine.begin) * transfer.element_bytes();
  const auto received = [&](int rank) -> const void* {
    return rank == transfer.rank() ? transfer.input() + begin : arrival(transfer, rank).data();
  };
  transfer.reduce(received, to + begin, mine.count());
}

// A small chunk, and any of two ranks: every rank sends all of it to every rank, and all reduce it the same way. A
// larger one: rank r gets slice r of every other rank, reduces these and its own, and sends the result to all: every
// element crosses the wire twice, and is added once.

void begin_all_reduce(MpiTransfer& transfer) {
  if (!transfer.tree().empty()) return begin_tree(transfer);
  transfer.pack_input();
  if (!transfer.travels_whole()) return exchange_slices(transfer);
  transfer.for_each_peer([&](int peer) { transfer.receive(peer, arrival(transfer, peer)); });
  transfer.for_each_peer([&](int peer) { transfer.send(peer, {transfer.input(), transfer.bytes()}); });
}

bool proceed_all_reduce(MpiTransfer& transfer) {
  if (!transfer.tree().empty()) return proceed_tree(transfer);
  if (transfer.phase() > 0) return false;
  reduce_received(transfer, transfer.output());
  if (transfer.travels_whole()) return false;
  const auto mine = slice(transfer, transfer.output(), transfer.rank());
  transfer.for_each_peer([&](int peer) { transfer.receive(peer, slice(transfer, transfer.output(), peer)); });
  transfer.for_each_peer([&](int peer) { transfer.send(peer, mine); });
  return true;
}

void finish_all_reduce(MpiTransfer& transfer) {
  transfer.unpack_output(transfer.tree().empty() ? transfer.packed() : result_of_tree(transfer));
}

// Like all_reduce, but towards one rank. A small chunk: every rank sends all of it to the root, which reduces it. A
// larger one: rank r gets slice r of every other rank, reduces these and its own, and sends the result to
// the root. Ranks that are not the root have no output: they reduce into staging.

std::byte* result(const MpiTransfer& transfer) {
  return transfer.is_root() ? transfer.output() : transfer.packed();
}

void begin_reduce(MpiTransfer& transfer) {
  if (!transfer.tree().empty()) return begin_tree(transfer);
  transfer.pack_input();
  if (!transfer.travels_whole()) return exchange_slices(transfer);
  if (!transfer.is_root()) return transfer.send(transfer.signature().root, {transfer.input(), transfer.bytes()});
  transfer.for_each_peer([&](int peer) { transfer.receive(peer, arrival(transfer, peer)); });
}

bool proceed_reduce(MpiTransfer& transfer) {
  if (!transfer.tree().empty()) return proceed_tree(transfer);
  if (transfer.phase() > 0) return false;
  const bool whole = transfer.travels_whole();
  if (!whole || transfer.is_root()) reduce_received(transfer, result(transfer));
  if (whole) return false;
  if (!transfer.is_root()) {
    transfer.send(transfer.signature().root, slice(transfer, result(transfer), transfer.rank()));
    return true;
  }
  transfer.for_each_peer([&](int peer) { transfer.receive(peer, slice(transfer, transfer.output(), peer)); });
  return true;
}

void finish_reduce(MpiTransfer& transfer) {
  if (transfer.is_root()) finish_all_reduce(transfer);
}

// Every rank sends each rank its rows; rank r then has its rows of all ranks, and reduces them. A block
// may be shorter than that of rank 0 by a row, and lack the end of the chunk.

void begin_reduce_scatter(MpiTransfer& transfer) {
  transfer.pack_blocks();
  const std::size_t mine = transfer.block_for(transfer.rank()).size();
  transfer.for_each_peer([&](int peer) { transfer.send(peer, transfer.block_for(peer)); });
  transfer.for_each_peer([&](int peer) { transfer.receive(peer, {transfer.received() + transfer.at(peer), mine}); });
}

bool proceed_reduce_scatter(MpiTransfer& transfer) {
  const auto own = transfer.block_for(transfer.rank());
  const auto received = [&](int rank) -> const void* {
    return rank == transfer.rank() ? own.data() : transfer.received() + transfer.at(rank);
  };
  void* const destination = transfer.staged() ? transfer.packed() : transfer.block_from(transfer.rank()).data();
  transfer.reduce(received, destination, static_cast<std::int64_t>(own.size() / transfer.element_bytes()));
  return false;
}

void finish_reduce_scatter(MpiTransfer& transfer) {
  transfer.unpack_output(transfer.packed());
}

}  // namespace

constinit const MpiMethod mpi_all_reduce{begin_all_reduce, proceed_all_reduce, finish_all_reduce};
constinit const MpiMethod mpi_reduce{begin_reduce, proceed_reduce, finish_reduce};
constinit const MpiMethod mpi_reduce_scatter{begin_reduce_scatter, proceed_reduce_scatter, finish_reduce_scatter};

}  // namespace kolo
