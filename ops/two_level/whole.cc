// Operations on tensors that are whole on every rank. A chunk is cut into stripes, one for each holder of a node.
//
// all_reduce: a reduce_scatter within the node gives each holder its stripe, an all_reduce between nodes its sum, and
// an all_gather within the node all of the chunk to all ranks. reduce: the same, but between nodes a reduce towards the
// root's, and there a gather towards the root. broadcast: the root's node has the chunk first; its holders give each
// stripe to the other nodes, which gather them.

#include <cstring>

#include "ops/kernels/convert.h"
#include "ops/two_level/flight.h"

namespace kolo {
namespace {

/// Where a chunk's elements lie, side by side; these may be one place.
struct Places {
  std::byte* in;       // in the carried type
  std::byte* sums;     // the same of what they are combined to
  std::byte* stripes;  // the holders' results, in the tensors' type
  std::byte* whole;    // all of the result, on ranks that have one
};

Places places_of(TwoLevelFlight& flight) {
  const bool single = flight.is_single(), widens = flight.carried() != flight.own();
  const bool all = flight.signature().kind != OpKind::reduce;
  if (!flight.staged()) return {flight.in_tensor(), flight.out_tensor(), flight.out_tensor(), flight.out_tensor()};
  std::byte* const sums = flight.staging();
  std::byte* const narrow = widens ? flight.second_half() : sums;
  const bool has_output = single && (all || flight.is_root());
  std::byte* const whole = has_output ? flight.out_tensor() : narrow;
  return {single && !widens ? flight.in_tensor() : sums, sums, all ? whole : narrow, whole};
}

RowRange stripe_range(const TwoLevelFlight& flight, int number) {
  return rows_of_rank(flight.count(), flight.placement().stripes(), number);
}
Tensor stripe(std::byte* begin, DType dtype, const TwoLevelFlight& flight, int number) {
  const RowRange range = stripe_range(flight, number);
  return list_of(begin + static_cast<std::size_t>(range.begin) * size_of(dtype), range.count(), dtype);
}
/// Of what this rank holds; empty if it holds none.
Tensor held(std::byte* begin, DType dtype, const TwoLevelFlight& flight) {
  return flight.placement().holds_stripe() ? stripe(begin, dtype, flight, flight.placement().index)
                                           : list_of(begin, 0, dtype);
}

Signature within(const TwoLevelFlight& flight, OpKind kind, int root = 0) {
  const ReduceOp op = flight.signature().op;
  return {.kind = kind,
          .op = op == ReduceOp::average ? ReduceOp::sum : op,
          .root = root,
          .prescale = flight.signature().prescale};
}
Signature between(const TwoLevelFlight& flight, OpKind kind, int root = 0) {
  return {.kind = kind, .op = flight.signature().op, .root = root, .postscale = flight.signature().postscale};
}

void gather_sums(TwoLevelFlight& flight) {
  const Places at = places_of(flight);
  const DType carried = flight.carried();
  const NodePlacement& placement = flight.placement();
  if (flight.staged() && at.in == at.sums) flight.pack(flight.rank(), at.in, carried);
  if (flight.node_is_absent()) return;  // nothing here counts
  if (placement.size() == 1) {
    const void* source = at.in;
    void* destination = at.sums;
    const Signature how = within(flight, OpKind::reduce);
    reduce({carried, how.op, how.prescale}, {&source, 1}, {&destination, 1}, static_cast<std::size_t>(flight.count()));
  } else if (placement.size() == placement.stripes()) {
    flight.start_intra_node(within(flight, OpKind::reduce_scatter),
                            {list_of(at.in, flight.count(), carried), held(at.sums, carried, flight)});
  } else {
    for (int s = 0; s < placement.stripes(); ++s) {
      const Tensor sums = placement.index == s ? stripe(at.sums, carried, flight, s) : Tensor{};
      flight.start_intra_node(within(flight, OpKind::reduce, s), {stripe(at.in, carried, flight, s), sums});
    }
  }
}

void exchange_sums(TwoLevelFlight& flight) {
  const Tensor mine = held(places_of(flight).sums, flight.carried(), flight);
  const bool all = flight.signature().kind == OpKind::all_reduce;
  flight.start_inter_node(
      all ? between(flight, OpKind::all_reduce) : between(flight, OpKind::reduce, flight.root_node()), {mine, mine});
}

/// This rank's stripe of the result, in the tensors' type.
void narrow_sums(TwoLevelFlight& flight) {
  if (flight.carried() == flight.own()) return;
  const Places at = places_of(flight);
  const Tensor from = held(at.sums, flight.carried(), flight), to = held(at.stripes, flight.own(), flight);
  convert(flight.carried(), from.data, flight.own(), to.data, static_cast<std::size_t>(from.elements()));
}

/// The holders' stripes become the chunk, on all ranks of the node or on one.
void join_stripes(TwoLevelFlight& flight, OpKind kind, int root) {
  const Places at = places_of(flight);
  const NodePlacement& placement = flight.placement();
  if (placement.size() == 1) {
    if (at.stripes != at.whole)
      std::memcpy(at.whole, at.stripes, static_cast<std::size_t>(flight.count()) * size_of(flight.own()));
    return;
  }
  BlockRows rows(placement.mine().size(), 0);
  for (int s = 0; s < placement.stripes(); ++s) rows[static_cast<std::size_t>(s)] = stripe_range(flight, s).count();
  flight.start_intra_node({.kind = kind, .root = root},
                          {held(at.stripes, flight.own(), flight), list_of(at.whole, flight.count(), flight.own()),
                           rows_that_differ(std::move(rows))});
}

void spread_to_all(TwoLevelFlight& flight) {
  join_stripes(flight, OpKind::all_gather, 0);
}

void spread_to_root(TwoLevelFlight& flight) {
  if (flight.on_root_node()) join_stripes(flight, OpKind::gather, flight.root_index());
}

void finish_all(TwoLevelFlight& flight) {
  if (!flight.is_single()) flight.unpack(flight.rank(), places_of(flight).whole);
}

void finish_reduce(TwoLevelFlight& flight) {
  if (flight.is_root()) finish_all(flight);
}

void gather_broadcast(TwoLevelFlight& flight) {
  const Places at = places_of(flight);
  if (!flight.on_root_node()) return;
  if (flight.staged() && flight.is_root()) flight.pack(flight.rank(), at.whole, flight.own());
  std::byte* const from = flight.staged() ? at.whole : at.in;
  if (flight.placement().size() == 1) {
    if (from != at.whole) std::memcpy(at.whole, from, static_cast<std::size_t>(flight.count()) * size_of(flight.own()));
    return;
  }
  flight.start_intra_node({.kind = OpKind::broadcast, .root = flight.root_index()},
                          {list_of(flight.is_root() ? from : at.whole, flight.count(), flight.own()),
                           list_of(at.whole, flight.count(), flight.own())});
}

void exchange_broadcast(TwoLevelFlight& flight) {
  const Tensor mine = held(places_of(flight).whole, flight.own(), flight);
  flight.start_inter_node({.kind = OpKind::broadcast, .root = flight.root_node()}, {mine, mine});
}

void spread_broadcast(TwoLevelFlight& flight) {
  if (!flight.on_root_node()) join_stripes(flight, OpKind::all_gather, 0);
}

}  // namespace

constinit const TwoLevelMethod two_level_all_reduce{gather_sums, exchange_sums, narrow_sums, spread_to_all, finish_all};
constinit const TwoLevelMethod two_level_reduce{gather_sums, exchange_sums, narrow_sums, spread_to_root, finish_reduce};
constinit const TwoLevelMethod two_level_broadcast{gather_broadcast, exchange_broadcast, nothing, spread_broadcast,
                                                   finish_all};

}  // namespace kolo
