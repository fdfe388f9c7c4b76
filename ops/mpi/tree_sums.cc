// Partial sums go along a NodeTree whose participants are the ranks that take part.
//
// all_reduce: participants at distance 1, 2, 4, … exchange what they have, and both combine it in the order of the
// tree. A large chunk is halved in each such round: the lower one keeps the lower half, gets the other's, and gives it
// the upper one; the sums then return on the same way (recursive halving and doubling). A small one is exchanged whole
// (recursive doubling). A participant beyond the base gives its values to its partner first, and gets the result last.
//
// reduce, of small chunks: in each pair of subtrees the one that does not contain the root sends its sum to the other;
// where neither does, the upper one sends. So a subtree's sum is with its owner: the root, or its lowest participant.
//
// A phase for the participants beyond the base, one for each round, and one to give results to those beyond the base:
// the same numbers on all ranks, whether they have messages in it or not.

#include "ops/mpi/tree_sums.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "ops/bucket.h"
#include "ops/kernels/convert.h"

namespace kolo {
namespace {

/// This rank's place in the tree.
struct Place {
  explicit Place(const MpiTransfer& transfer)
      : ranks(transfer.tree()), nodes(static_cast<int>(ranks.size())), base(NodeTree{nodes}.base()) {
    index = index_of(transfer.rank());
    if (transfer.signature().kind == OpKind::reduce) root = index_of(transfer.signature().root);
  }
  int index_of(int rank) const {
    const auto found = std::ranges::lower_bound(ranks, rank);
    return found != ranks.end() && *found == rank ? static_cast<int>(found - ranks.begin()) : -1;
  }
  int rank_of(int participant) const { return ranks[static_cast<std::size_t>(participant)]; }
  int rounds() const { return std::countr_zero(static_cast<unsigned>(base)); }
  bool has_partner() const { return index + base < nodes; }

  const std::vector<int>& ranks;
  int nodes, base;
  int index = -1;  // -1: it takes no part
  int root = -1;
};

bool is_halved(const MpiTransfer& transfer) {
  return static_cast<std::int64_t>(transfer.bytes()) > transfer.small();
}

bool packs(const MpiTransfer& transfer) {
  return transfer.staged() || transfer.carried() != transfer.signature().dtype || transfer.signature().prescale != 1;
}

/// Where partial sums lie once this rank has combined something.
std::byte* sums(const MpiTransfer& transfer) {
  const bool no_output = transfer.signature().kind == OpKind::reduce && !transfer.is_root();
  return packs(transfer) || no_output ? transfer.packed() : transfer.output();
}

/// What this rank has: its own values at first.
std::byte* mine(MpiTransfer& transfer) {
  const bool combined = transfer.parts().size() > 1;
  return combined || packs(transfer) ? sums(transfer) : transfer.input();
}

std::span<std::byte> part(std::byte* begin, ElementRange range, DType dtype) {
  const std::size_t size = size_of(dtype);
  return {begin + static_cast<std::size_t>(range.begin) * size, static_cast<std::size_t>(range.count()) * size};
}

void send_part(MpiTransfer& transfer, int to, ElementRange range) {
  transfer.send(to, part(mine(transfer), range, transfer.carried()));
}
void receive_part(MpiTransfer& transfer, int from, ElementRange range) {
  transfer.receive(from, part(transfer.received(), {0, range.count()}, transfer.carried()));
}
std::span<std::byte> result(const MpiTransfer& transfer, ElementRange range) {
  return part(result_of_tree(transfer), range, transfer.signature().dtype);
}

/// Own values in the type that is carried, scaled.
void prepare(MpiTransfer& transfer) {
  const Signature& signature = transfer.signature();
  const DType carried = transfer.carried();
  const auto count = static_cast<std::size_t>(transfer.count());
  transfer.parts().assign(1, {0, transfer.count()});
  if (!packs(transfer)) return;
  if (carried == signature.dtype && transfer.staged()) {
    transfer.pack_input();
  } else {
    if (transfer.staged()) transfer.pack_input(transfer.received());
    const std::byte* const from = transfer.staged() ? transfer.received() : transfer.input();
    if (carried == signature.dtype)
      std::memcpy(transfer.packed(), from, transfer.bytes());
    else
      convert(signature.dtype, from, carried, transfer.packed(), count);
  }
  if (signature.prescale == 1) return;
  void* const values = transfer.packed();
  const void* const source = values;
  const ReduceOp op = signature.op == ReduceOp::average ? ReduceOp::sum : signature.op;
  reduce({carried, op, signature.prescale}, {&source, 1}, {&values, 1}, count);
}

/// What this rank has of the range, and what has been received of it.
void combine(MpiTransfer& transfer, ElementRange range, bool received_first, bool last) {
  Reduction how = transfer.reduction();
  how.dtype = transfer.carried();
  how.prescale = 1;
  if (!last) {
    how.postscale = 1;
    if (how.op == ReduceOp::average) how.op = ReduceOp::sum;
  }
  const void* const own = part(mine(transfer), range, how.dtype).data();
  const void* const other = transfer.received();
  const std::array<const void*, 2> sources{received_first ? other : own, received_first ? own : other};
  void* const destination = part(sums(transfer), range, how.dtype).data();
  reduce(how, sources, {&destination, 1}, static_cast<std::size_t>(range.count()));
  transfer.parts().push_back(range);
}

/// The half of the range that a participant keeps in a round.
ElementRange half_of(const MpiTransfer& transfer, ElementRange range, bool upper) {
  const ElementRange half = slice_of(range.count(), size_of(transfer.carried()), 2, upper ? 1 : 0);
  return {range.begin + half.begin, range.begin + half.end};
}

/// Puts the sums of a range where the result is to be.
void settle(MpiTransfer& transfer, ElementRange range) {
  const DType carried = transfer.carried(), own = transfer.signature().dtype;
  const auto from = part(sums(transfer), range, carried), to = result(transfer, range);
  if (carried != own)
    convert(carried, from.data(), own, to.data(), static_cast<std::size_t>(range.count()));
  else if (from.data() != to.data())
    std::memcpy(to.data(), from.data(), to.size());
}

// ---- all_reduce

void begin_all(MpiTransfer& transfer, const Place& place) {
  const ElementRange whole = transfer.parts().front();
  if (place.index >= place.base) {
    const int partner = place.rank_of(place.index - place.base);
    transfer.receive(partner, result(transfer, whole));
    send_part(transfer, partner, whole);
  } else if (place.has_partner()) {
    receive_part(transfer, place.rank_of(place.index + place.base), whole);
  }
}

void begin_round(MpiTransfer& transfer, const Place& place, int round) {
  const int bit = 1 << (round - 1), other = place.rank_of(place.index ^ bit);
  const bool upper = (place.index & bit) != 0, halved = is_halved(transfer);
  const ElementRange range = transfer.parts().back();
  receive_part(transfer, other, halved ? half_of(transfer, range, upper) : range);
  send_part(transfer, other, halved ? half_of(transfer, range, !upper) : range);
}

/// Whoever had one half of a range gets the other.
void begin_return(MpiTransfer& transfer, const Place& place, int round) {
  const int bit = 1 << (round - 1), other = place.rank_of(place.index ^ bit);
  const ElementRange have = transfer.parts().back();
  transfer.parts().pop_back();
  transfer.receive(other, result(transfer, half_of(transfer, transfer.parts().back(), (place.index & bit) == 0)));
  transfer.send(other, result(transfer, have));
}

bool proceed_all(MpiTransfer& transfer, const Place& place) {
  if (place.index >= place.base) return false;
  const int rounds = place.rounds(), phase = transfer.phase(), next = phase + 1;
  const int returns = is_halved(transfer) ? rounds : 0;
  const ElementRange range = transfer.parts().back();
  if (phase == 0 && place.has_partner()) combine(transfer, range, false, false);
  if (phase > 0 && phase <= rounds) {
    const bool upper = (place.index >> (phase - 1) & 1) != 0;
    combine(transfer, returns > 0 ? half_of(transfer, range, upper) : range, upper, phase == rounds);
    if (phase == rounds) settle(transfer, transfer.parts().back());
  }
  if (next <= rounds) {
    begin_round(transfer, place, next);
  } else if (next <= rounds + returns) {
    begin_return(transfer, place, 2 * rounds + 1 - next);
  } else {
    if (next > rounds + returns + 1 || !place.has_partner()) return false;
    transfer.send(place.rank_of(place.index + place.base), result(transfer, {0, transfer.count()}));
  }
  return true;
}

// ---- reduce

/// Of the subtree of `size` participants below the base, and their partners, that begins at `first`.
int owner(const Place& place, int first, int size) {
  const int root_leaf = place.root % place.base;
  return root_leaf >= first && root_leaf < first + size ? place.root : first;
}

/// What this rank does with another subtree's owner in a phase: sends it its sum, or gets that one's; -1: neither.
struct Meeting {
  int other = -1;
  bool sends = false;
  bool received_first = false;  // the other's come first
};

Meeting meeting_in(const Place& place, int phase) {
  const int leaf = place.index % place.base;
  if (phase == 0) {
    if (leaf + place.base >= place.nodes) return {};
    const int other = place.index < place.base ? place.index + place.base : leaf;
    return {other, owner(place, leaf, 1) != place.index, other < place.index};
  }
  const int size = 1 << (phase - 1), first = leaf / size * size, sibling = first ^ size;
  if (phase > place.rounds() || owner(place, first, size) != place.index) return {};
  return {owner(place, sibling, size), owner(place, std::min(first, sibling), 2 * size) != place.index,
          sibling < first};
}

void begin_meeting(MpiTransfer& transfer, const Place& place, int phase) {
  const Meeting meeting = meeting_in(place, phase);
  if (meeting.other < 0) return;
  const ElementRange whole = transfer.parts().front();
  if (meeting.sends)
    send_part(transfer, place.rank_of(meeting.other), whole);
  else
    receive_part(transfer, place.rank_of(meeting.other), whole);
}

bool proceed_to_root(MpiTransfer& transfer, const Place& place) {
  const int phase = transfer.phase();
  const Meeting meeting = meeting_in(place, phase);
  if (meeting.other >= 0 && meeting.sends) return false;
  const bool last = phase == place.rounds();
  if (meeting.other >= 0) combine(transfer, transfer.parts().front(), meeting.received_first, last);
  if (last) {
    settle(transfer, transfer.parts().front());
    return false;
  }
  begin_meeting(transfer, place, phase + 1);
  return true;
}

}  // namespace

void begin_tree(MpiTransfer& transfer) {
  const Place place(transfer);
  if (place.index < 0) return;
  prepare(transfer);
  if (place.root < 0)
    begin_all(transfer, place);
  else
    begin_meeting(transfer, place, 0);
}

bool proceed_tree(MpiTransfer& transfer) {
  const Place place(transfer);
  if (place.index < 0) return false;
  return place.root < 0 ? proceed_all(transfer, place) : proceed_to_root(transfer, place);
}

/// What is packed and carried in another type has left room where messages arrived.
std::byte* result_of_tree(const MpiTransfer& transfer) {
  if (!transfer.staged()) return transfer.output();
  return transfer.carried() == transfer.signature().dtype ? transfer.packed() : transfer.received();
}

}  // namespace kolo
