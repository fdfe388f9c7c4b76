// How each kind of operation travels: by messages between the ranks, with the tag of the chunk.
//
// Why every message finds the receive that was meant for it: messages of one rank to another with one tag are received
// in the order in which they were sent, by receives in the order in which they were started (MPI 3.1, section 3.5).
// Groups that have two ranks in common have different tags. Within a group, chunks c and c + MpiChannel::chunk_tags
// have the same tag; a rank starts the messages of the second, sends as well as receives, only when the first is
// finished there. Within a chunk, a rank starts both sends and receives of the first phase before those of the second,
// and at most one of each to and from another rank in a phase. So on both sides the order is that of chunks, then of
// phases, and the n-th message is taken by the n-th receive; what is empty is neither sent nor received, and both sides
// know from agreed sizes what is.

#include <cstring>

#include "ops/kernels/reduce.h"
#include "ops/mpi/transfer.h"

namespace kolo {
namespace {

void nothing(MpiTransfer&) {}

// ---- values are combined
// ------------------------------------------------------------------------------------------------

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
  if (transfer.travels_whole()) return {transfer.received() + transfer.at(rank), transfer.bytes()};
  const std::size_t bytes = slice(transfer, transfer.received(), transfer.rank()).size();
  return {transfer.received() + static_cast<std::size_t>(rank) * bytes, bytes};
}

/// Each rank gets its slice of every other rank's input().
void exchange_slices(MpiTransfer& transfer) {
  transfer.for_each_peer([&](int peer) { transfer.receive(peer, arrival(transfer, peer)); });
  transfer.for_each_peer([&](int peer) { transfer.send(peer, slice(transfer, transfer.input(), peer)); });
}

/// Reduces this rank's slice, or all of the chunk if it travels whole, in rank order: the inputs received and this
/// rank's own input(). `to` stands for the begin of the chunk.
void reduce_received(MpiTransfer& transfer, std::byte* to) {
  const bool whole = transfer.ranks() == 1 || transfer.travels_whole();
  const ElementRange mine = whole ? ElementRange{0, transfer.count()} : slice_of_rank(transfer, transfer.rank());
  const std::size_t begin = static_cast<std::size_t>(mine.begin) * transfer.element_bytes();
  const auto received = [&](int rank) -> const void* {
    return rank == transfer.rank() ? transfer.input() + begin : arrival(transfer, rank).data();
  };
  void* const destination = to + begin;
  reduce(transfer.reduction(), transfer.sources_of_present(received), {&destination, 1},
         static_cast<std::size_t>(mine.count()));
}

// A small chunk: every rank sends all of it to every rank, and all reduce it the same way. A larger one: rank r gets
// slice r of every other rank, reduces these and its own in rank order, and sends the result to all: every element
// crosses the wire twice, and is added once.

void begin_all_reduce(MpiTransfer& transfer) {
  transfer.pack_input();
  if (!transfer.travels_whole()) return exchange_slices(transfer);
  transfer.for_each_peer([&](int peer) { transfer.receive(peer, arrival(transfer, peer)); });
  transfer.for_each_peer([&](int peer) { transfer.send(peer, {transfer.input(), transfer.bytes()}); });
}

void proceed_all_reduce(MpiTransfer& transfer) {
  reduce_received(transfer, transfer.output());
  if (transfer.travels_whole()) return;
  const auto mine = slice(transfer, transfer.output(), transfer.rank());
  transfer.for_each_peer([&](int peer) { transfer.receive(peer, slice(transfer, transfer.output(), peer)); });
  transfer.for_each_peer([&](int peer) { transfer.send(peer, mine); });
}

void finish_all_reduce(MpiTransfer& transfer) {
  transfer.unpack_output(transfer.packed());
}

// Like all_reduce, but towards one rank. A small chunk: every rank sends all of it to the root, which reduces it. A
// larger one: rank r gets slice r of every other rank, reduces these and its own in rank order, and sends the result to
// the root. Ranks that are not the root have no output: they reduce into staging.

std::byte* result(const MpiTransfer& transfer) {
  return transfer.is_root() ? transfer.output() : transfer.packed();
}

void begin_reduce(MpiTransfer& transfer) {
  transfer.pack_input();
  if (!transfer.travels_whole()) return exchange_slices(transfer);
  if (!transfer.is_root()) return transfer.send(transfer.signature().root, {transfer.input(), transfer.bytes()});
  transfer.for_each_peer([&](int peer) { transfer.receive(peer, arrival(transfer, peer)); });
}

void proceed_reduce(MpiTransfer& transfer) {
  const bool whole = transfer.travels_whole();
  if (!whole || transfer.is_root()) reduce_received(transfer, result(transfer));
  if (whole) return;
  if (!transfer.is_root())
    return transfer.send(transfer.signature().root, slice(transfer, result(transfer), transfer.rank()));
  transfer.for_each_peer([&](int peer) { transfer.receive(peer, slice(transfer, transfer.output(), peer)); });
}

void finish_reduce(MpiTransfer& transfer) {
  if (transfer.is_root()) transfer.unpack_output(transfer.packed());
}

// Every rank sends each rank its rows; rank r then has its rows of all ranks, and reduces them in rank order. A block
// may be shorter than that of rank 0 by a row, and lack the end of the chunk.

void begin_reduce_scatter(MpiTransfer& transfer) {
  transfer.pack_blocks();
  const std::size_t mine = transfer.block_for(transfer.rank()).size();
  transfer.for_each_peer([&](int peer) { transfer.receive(peer, {transfer.received() + transfer.at(peer), mine}); });
  transfer.for_each_peer([&](int peer) { transfer.send(peer, transfer.block_for(peer)); });
}

void proceed_reduce_scatter(MpiTransfer& transfer) {
  const auto own = transfer.block_for(transfer.rank());
  const auto received = [&](int rank) -> const void* {
    return rank == transfer.rank() ? own.data() : transfer.received() + transfer.at(rank);
  };
  void* const destination = transfer.staged() ? transfer.packed() : transfer.block_from(transfer.rank()).data();
  reduce(transfer.reduction(), transfer.sources_of_present(received), {&destination, 1},
         own.size() / transfer.element_bytes());
}

void finish_reduce_scatter(MpiTransfer& transfer) {
  transfer.unpack_output(transfer.packed());
}

// ---- values are only copied
// ---------------------------------------------------------------------------------------------

// The root's chunk goes down a tree. Where there are chunks enough to keep all of it busy that is a chain, as every
// rank then sends once; else, of few ranks, the root has all others as children; of many it is a binomial tree. Ranks
// count from the root: there rank r gets the chunk from r without its lowest bit, and passes it on to r + 1, r + 2, r +
// 4, … below that bit.

constexpr int few_ranks = 4;  // are served by the root sooner than by one another

int place_of(const MpiTransfer& transfer) {
  return (transfer.rank() - transfer.signature().root + transfer.ranks()) % transfer.ranks();
}

template <class Visit>
void for_each_child(const MpiTransfer& transfer, Visit visit) {
  const int ranks = transfer.ranks(), place = place_of(transfer);
  const auto visit_place = [&](int child) {
    if (child < ranks) visit((transfer.signature().root + child) % ranks);
  };
  if (transfer.fills_chain()) return visit_place(place + 1);
  if (ranks <= few_ranks) {
    for (int child = 1; place == 0 && child < ranks; ++child) visit_place(child);
    return;
  }
  int step = 1;  // the lowest bit of `place`, or of what would be the next rank
  while (place % (2 * step) == 0 && step < ranks) step *= 2;
  while ((step /= 2) > 0) visit_place(place + step);
}

int parent(const MpiTransfer& transfer) {
  const int place = place_of(transfer);
  const int above = transfer.fills_chain() ? place - 1 : transfer.ranks() <= few_ranks ? 0 : place & (place - 1);
  return (transfer.signature().root + above) % transfer.ranks();
}

void begin_broadcast(MpiTransfer& transfer) {
  if (!transfer.is_root()) return transfer.receive(parent(transfer), {transfer.output(), transfer.bytes()});
  transfer.pack_input();
  for_each_child(transfer, [&](int child) { transfer.send(child, {transfer.input(), transfer.bytes()}); });
}

void proceed_broadcast(MpiTransfer& transfer) {
  if (transfer.is_root()) return;
  for_each_child(transfer, [&](int child) { transfer.send(child, {transfer.output(), transfer.bytes()}); });
}

void finish_broadcast(MpiTransfer& transfer) {
  transfer.unpack_output(transfer.packed());
  const bool copy_on_root = transfer.is_root() && !transfer.staged() && transfer.input() != transfer.output();
  if (copy_on_root) std::memcpy(transfer.output(), transfer.input(), transfer.bytes());
}

// Every rank sends its block to all ranks, or to the root, or the block that it has for a rank to that rank. Blocks
// travel from tensor to tensor, unless they are packed: those of an all_to_all in-place always, since what arrives
// overwrites them.

void receive_blocks(MpiTransfer& transfer) {
  transfer.for_each_peer([&](int peer) { transfer.receive(peer, transfer.block_from(peer)); });
}

void send_blocks(MpiTransfer& transfer) {
  transfer.for_each_peer([&](int peer) { transfer.send(peer, transfer.block_for(peer)); });
}

void begin_all_gather(MpiTransfer& transfer) {
  transfer.pack_input();
  receive_blocks(transfer);
  send_blocks(transfer);
  transfer.keep_own_block();
}

void begin_gather(MpiTransfer& transfer) {
  transfer.pack_input();
  const int root = transfer.signature().root;
  if (!transfer.is_root()) return transfer.send(root, transfer.block_for(root));
  receive_blocks(transfer);
  transfer.keep_own_block();
}

void begin_scatter(MpiTransfer& transfer) {
  const int root = transfer.signature().root;
  if (!transfer.is_root()) return transfer.receive(root, transfer.block_from(root));
  transfer.pack_blocks();
  send_blocks(transfer);
  transfer.keep_own_block();
}

void begin_all_to_all(MpiTransfer& transfer) {
  transfer.pack_blocks();
  receive_blocks(transfer);
  send_blocks(transfer);
  transfer.keep_own_block();
}

void finish_blocks(MpiTransfer& transfer) {
  transfer.unpack_blocks();
}

void finish_gather(MpiTransfer& transfer) {
  if (transfer.is_root()) transfer.unpack_blocks();
}

void finish_scatter(MpiTransfer& transfer) {
  if (transfer.staged()) transfer.unpack_output(transfer.received() + transfer.at(transfer.signature().root));
}

}  // namespace

constinit const MpiMethod mpi_all_reduce{begin_all_reduce, proceed_all_reduce, finish_all_reduce};
constinit const MpiMethod mpi_reduce{begin_reduce, proceed_reduce, finish_reduce};
constinit const MpiMethod mpi_reduce_scatter{begin_reduce_scatter, proceed_reduce_scatter, finish_reduce_scatter};
constinit const MpiMethod mpi_broadcast{begin_broadcast, proceed_broadcast, finish_broadcast};
constinit const MpiMethod mpi_all_gather{begin_all_gather, nothing, finish_blocks};
constinit const MpiMethod mpi_gather{begin_gather, nothing, finish_gather};
constinit const MpiMethod mpi_scatter{begin_scatter, nothing, finish_scatter};
constinit const MpiMethod mpi_all_to_all{begin_all_to_all, nothing, finish_blocks};

}  // namespace kolo
