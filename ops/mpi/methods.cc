// How each kind of operation travels: by messages between the ranks, with the tag of the chunk.
//
// Why every message finds the receive that was meant for it: messages of one rank to another with one tag are received
// in the order in which they were sent, by receives in the order in which they were started (MPI 3.1, section 3.5).
// Groups that have two ranks in common have different tags. Within a group, chunks c and c + MpiChannel::chunk_tags
// have the same tag; a rank starts the messages of the second, sends as well as receives, only when the first is
// complete there. Within a chunk, a rank starts both sends and receives of a phase before those of the next, and at
// most one of each to and from another rank in a phase. So on both sides the order is that of chunks, then of
// phases, and the n-th message is taken by the n-th receive; what is empty is neither sent nor received, and both sides
// know from agreed sizes what is.

#include <cstring>

#include "ops/mpi/transfer.h"

namespace kolo {
namespace {

bool one_phase(MpiTransfer&) {
  return false;
}

// ---- values are only copied
// ---------------------------------------------------------------------------------------------

// The root's chunk goes down a tree. Where there are chunks enough to keep all of it busy that is a chain, as every
// rank then sends once; else, of few ranks, the root has all others as children; of many it is a binomial tree. Ranks
// count from the root: there rank r gets the chunk from r without its lowest bit, and passes it on to r + 1, r + 2, r +
// 4, … below that bit.

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
  if (ranks <= transfer.few()) {
    for (int child = 1; place == 0 && child < ranks; ++child) visit_place(child);
    return;
  }
  int step = 1;  // the lowest bit of `place`, or of what would be the next rank
  while (place % (2 * step) == 0 && step < ranks) step *= 2;
  while ((step /= 2) > 0) visit_place(place + step);
}

int parent(const MpiTransfer& transfer) {
  const int place = place_of(transfer);
  const int above = transfer.fills_chain() ? place - 1 : transfer.ranks() <= transfer.few() ? 0 : place & (place - 1);
  return (transfer.signature().root + above) % transfer.ranks();
}

void begin_broadcast(MpiTransfer& transfer) {
  if (!transfer.is_root()) return transfer.receive(parent(transfer), {transfer.output(), transfer.bytes()});
  transfer.pack_input();
  for_each_child(transfer, [&](int child) { transfer.send(child, {transfer.input(), transfer.bytes()}); });
}

bool proceed_broadcast(MpiTransfer& transfer) {
  if (transfer.is_root() || transfer.phase() > 0) return false;
  for_each_child(transfer, [&](int child) { transfer.send(child, {transfer.output(), transfer.bytes()}); });
  return true;
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

constinit const MpiMethod mpi_broadcast{begin_broadcast, proceed_broadcast, finish_broadcast};
constinit const MpiMethod mpi_all_gather{begin_all_gather, one_phase, finish_blocks};
constinit const MpiMethod mpi_gather{begin_gather, one_phase, finish_gather};
constinit const MpiMethod mpi_scatter{begin_scatter, one_phase, finish_scatter};
constinit const MpiMethod mpi_all_to_all{begin_all_to_all, one_phase, finish_blocks};

}  // namespace kolo
