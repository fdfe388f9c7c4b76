// Operations in which ranks have blocks. What travels is packed, so that a stripe lies in one piece: the blocks of the
// ranks that belong to it, node by node.
//
// all_gather, gather: blocks keep their lengths. Ranks that hold no stripe hand their block to their stripe's holder;
// holders all_gather, or gather, between nodes; the stripes are brought together within the node. reduce_scatter,
// scatter: a block has a cell as long as the longest one, so that what each node gets is as long. The node's values are
// combined, or the root's handed to the holders; these exchange; and pass on the blocks of those that hold no stripe.
// all_to_all, of nodes with as many ranks: holder i sends holder i of each node what there is for the ranks of that
// node, and these exchange it among themselves.

#include <cstring>

#include "ops/kernels/convert.h"
#include "ops/two_level/flight.h"

namespace kolo {
namespace {

std::byte* place(std::byte* begin, std::int64_t element, DType dtype) {
  return begin + static_cast<std::size_t>(element) * size_of(dtype);
}

/// The chunk's blocks of all ranks one behind the other, by stripe, node and rank.
struct Blocks {
  explicit Blocks(const TwoLevelFlight& flight)
      : placement(flight.placement()), counts(placement.places.size()), begins(counts.size()) {
    const auto nodes = static_cast<std::size_t>(placement.nodes()),
               stripes = static_cast<std::size_t>(placement.stripes());
    for (std::size_t rank = 0; rank < counts.size(); ++rank)
      counts[rank] = flight.block_count(static_cast<int>(rank), static_cast<int>(rank));
    std::int64_t end = 0;
    for (std::size_t s = 0; s < stripes; ++s) {
      for (std::size_t node = 0; node < nodes; ++node) {
        sections.push_back(end);
        for (std::size_t i = s; i < placement.ranks[node].size(); i += stripes) {
          const auto rank = static_cast<std::size_t>(placement.ranks[node][i]);
          begins[rank] = end;
          end += counts[rank];
        }
      }
    }
    sections.push_back(end);
  }
  std::int64_t begin_of(int stripe, int node) const {
    return sections[static_cast<std::size_t>(stripe) * placement.ranks.size() + static_cast<std::size_t>(node)];
  }
  std::int64_t count_of(int stripe, int node) const { return begin_of(stripe, node + 1) - begin_of(stripe, node); }
  Tensor section(std::byte* at, int stripe, int node, DType dtype) const {
    return list_of(place(at, begin_of(stripe, node), dtype), count_of(stripe, node), dtype);
  }
  Tensor stripe(std::byte* at, int stripe, DType dtype) const {
    const std::int64_t begin = begin_of(stripe, 0);
    return list_of(place(at, begin, dtype), begin_of(stripe + 1, 0) - begin, dtype);
  }
  std::int64_t begin(int rank) const { return begins[static_cast<std::size_t>(rank)]; }
  std::int64_t count(int rank) const { return counts[static_cast<std::size_t>(rank)]; }

  const NodePlacement& placement;
  std::vector<std::int64_t> counts, begins;  // by rank
  std::vector<std::int64_t> sections;        // begins, by stripe and node; the last is the end
};

// ---- all_gather, gather

void gather_blocks(TwoLevelFlight& flight) {
  const NodePlacement& placement = flight.placement();
  const Blocks blocks(flight);
  const DType own = flight.own();
  std::byte* const all = flight.staging();
  const Tensor mine = list_of(place(all, blocks.begin(flight.rank()), own), blocks.count(flight.rank()), own);
  flight.pack(flight.rank(), static_cast<std::byte*>(mine.data), own);
  const int stripes = placement.stripes();
  for (int s = 0; placement.size() > stripes && s < stripes; ++s) {
    BlockRows rows(placement.mine().size(), 0);
    for (std::size_t i = static_cast<std::size_t>(s); i < rows.size(); i += static_cast<std::size_t>(stripes))
      rows[i] = blocks.count(placement.mine()[i]);
    const bool belongs = placement.index % stripes == s;
    flight.start_intra_node({.kind = OpKind::gather, .root = s},
                            {belongs ? mine : list_of(all, 0, own), blocks.section(all, s, placement.node, own),
                             rows_that_differ(std::move(rows))});
  }
}

void exchange_blocks(TwoLevelFlight& flight) {
  const NodePlacement& placement = flight.placement();
  const Blocks blocks(flight);
  const int s = placement.index;
  BlockRows rows;
  for (int node = 0; node < placement.nodes(); ++node) rows.push_back(blocks.count_of(s, node));
  const bool all = flight.signature().kind == OpKind::all_gather;
  flight.start_inter_node({.kind = flight.signature().kind, .root = all ? 0 : flight.root_node()},
                          {blocks.section(flight.staging(), s, placement.node, flight.own()),
                           blocks.stripe(flight.staging(), s, flight.own()), rows_that_differ(std::move(rows))});
}

void join_blocks(TwoLevelFlight& flight, OpKind kind, int root) {
  const NodePlacement& placement = flight.placement();
  const Blocks blocks(flight);
  BlockRows rows(placement.mine().size(), 0);
  for (int s = 0; s < placement.stripes(); ++s)
    rows[static_cast<std::size_t>(s)] = blocks.begin_of(s + 1, 0) - blocks.begin_of(s, 0);
  std::byte* const all = flight.staging();
  const Tensor mine =
      placement.holds_stripe() ? blocks.stripe(all, placement.index, flight.own()) : list_of(all, 0, flight.own());
  flight.start_intra_node({.kind = kind, .root = root}, {mine, list_of(all, blocks.sections.back(), flight.own()),
                                                         rows_that_differ(std::move(rows))});
}

void spread_all_gather(TwoLevelFlight& flight) {
  join_blocks(flight, OpKind::all_gather, 0);
}

void spread_gather(TwoLevelFlight& flight) {
  if (flight.on_root_node()) join_blocks(flight, OpKind::gather, flight.root_index());
}

void finish_all_gather(TwoLevelFlight& flight) {
  const Blocks blocks(flight);
  for (int rank = 0; rank < flight.ranks(); ++rank)
    flight.unpack(rank, place(flight.staging(), blocks.begin(rank), flight.own()));
}

void finish_gather(TwoLevelFlight& flight) {
  if (flight.is_root()) finish_all_gather(flight);
}

// ---- reduce_scatter, scatter

/// Of what one stripe has for one node.
std::int64_t section_count(const TwoLevelFlight& flight) {
  return flight.placement().depth() * flight.count();
}
std::int64_t stripe_count(const TwoLevelFlight& flight) {
  return flight.placement().nodes() * section_count(flight);
}
Tensor cells_of_stripe(TwoLevelFlight& flight, int stripe) {
  return list_of(place(flight.staging(), stripe * stripe_count(flight), flight.carried()), stripe_count(flight),
                 flight.carried());
}
/// What this node gets of this rank's stripe.
Tensor section_here(TwoLevelFlight& flight) {
  const NodePlacement& placement = flight.placement();
  const std::int64_t begin = placement.index * stripe_count(flight) + placement.node * section_count(flight);
  return list_of(place(flight.staging(), begin, flight.carried()), section_count(flight), flight.carried());
}
/// The same in the tensors' type, for all stripes one behind the other.
Tensor result_section(TwoLevelFlight& flight, int stripe) {
  return list_of(place(flight.second_half(), stripe * section_count(flight), flight.own()), section_count(flight),
                 flight.own());
}

/// What is padding counts for nothing, but is combined like the rest.
void pack_cells(TwoLevelFlight& flight) {
  const DType carried = flight.carried();
  const NodePlacement& placement = flight.placement();
  const auto cells = static_cast<std::int64_t>(placement.cells());
  bool padded = cells != flight.ranks();
  for (int rank = 0; rank < flight.ranks(); ++rank) padded |= flight.block_count(rank, rank) != flight.count();
  if (padded) std::memset(flight.staging(), 0, static_cast<std::size_t>(cells * flight.count()) * size_of(carried));
  for (int rank = 0; rank < flight.ranks(); ++rank) {
    const auto cell = static_cast<std::int64_t>(placement.cell_of(rank));
    flight.pack(rank, place(flight.staging(), cell * flight.count(), carried), carried);
  }
}

void gather_sums_of_cells(TwoLevelFlight& flight) {
  const NodePlacement& placement = flight.placement();
  (void)flight.staging();
  if (flight.node_is_absent()) return;  // nothing here counts
  pack_cells(flight);
  const Signature& whole = flight.signature();
  Signature within{.op = whole.op == ReduceOp::average ? ReduceOp::sum : whole.op, .prescale = whole.prescale};
  const Tensor all = list_of(flight.staging(), placement.stripes() * stripe_count(flight), flight.carried());
  if (placement.size() == 1) {
    const void* source = all.data;
    void* destination = all.data;
    reduce({flight.carried(), within.op, within.prescale}, {&source, 1}, {&destination, 1},
           static_cast<std::size_t>(all.elements()));
  } else if (placement.size() == placement.stripes()) {
    within.kind = OpKind::reduce_scatter;
    flight.start_intra_node(within, {all, cells_of_stripe(flight, placement.index)});
  } else {
    within.kind = OpKind::reduce;
    for (int s = 0; s < placement.stripes(); ++s) {
      within.root = s;
      const Tensor cells = cells_of_stripe(flight, s);
      flight.start_intra_node(within, {cells, placement.index == s ? cells : Tensor{}});
    }
  }
}

void exchange_sums_of_cells(TwoLevelFlight& flight) {
  const Signature& whole = flight.signature();
  flight.start_inter_node({.kind = OpKind::reduce_scatter, .op = whole.op, .postscale = whole.postscale},
                          {cells_of_stripe(flight, flight.placement().index), section_here(flight)});
}

void gather_scatter(TwoLevelFlight& flight) {
  (void)flight.staging();
  if (!flight.on_root_node()) return;
  if (flight.is_root()) pack_cells(flight);
  const Tensor all = list_of(flight.staging(), flight.placement().stripes() * stripe_count(flight), flight.own());
  flight.start_intra_node({.kind = OpKind::broadcast, .root = flight.root_index()}, {all, all});
}

void exchange_scatter(TwoLevelFlight& flight) {
  flight.start_inter_node({.kind = OpKind::scatter, .root = flight.root_node()},
                          {cells_of_stripe(flight, flight.placement().index), section_here(flight)});
}

void take_section(TwoLevelFlight& flight) {
  const Tensor from = section_here(flight), to = result_section(flight, flight.placement().index);
  if (flight.carried() == flight.own())
    std::memcpy(to.data, from.data, from.bytes());
  else
    convert(flight.carried(), from.data, flight.own(), to.data, static_cast<std::size_t>(from.elements()));
}

void pass_on_cells(TwoLevelFlight& flight) {
  const NodePlacement& placement = flight.placement();
  for (int s = 0; placement.size() > placement.stripes() && s < placement.stripes(); ++s) {
    const Tensor section = result_section(flight, s);
    flight.start_intra_node({.kind = OpKind::broadcast, .root = s}, {section, section});
  }
}

void finish_cell(TwoLevelFlight& flight) {
  const NodePlacement& placement = flight.placement();
  const int stripes = placement.stripes();
  const Tensor section = result_section(flight, placement.index % stripes);
  flight.unpack(flight.rank(),
                place(static_cast<std::byte*>(section.data), placement.index / stripes * flight.count(), flight.own()));
}

// ---- all_to_all

/// Elements for the ranks of a node from rank `from`, or from the ranks with index `index` of all nodes to rank `to`.
std::int64_t count_to_node(const TwoLevelFlight& flight, int from, int node) {
  std::int64_t sum = 0;
  for (const int to : flight.placement().ranks[static_cast<std::size_t>(node)]) sum += flight.block_count(from, to);
  return sum;
}
int rank_at(const TwoLevelFlight& flight, int node, int index) {
  return flight.placement().ranks[static_cast<std::size_t>(node)][static_cast<std::size_t>(index)];
}
std::int64_t count_from_index(const TwoLevelFlight& flight, int index, int to) {
  std::int64_t sum = 0;
  for (int node = 0; node < flight.placement().nodes(); ++node)
    sum += flight.block_count(rank_at(flight, node, index), to);
  return sum;
}

/// For each node, what there is for its ranks.
void gather_all_to_all(TwoLevelFlight& flight) {
  std::byte* to = flight.staging();
  for (const auto& ranks : flight.placement().ranks) {
    for (const int rank : ranks) {
      flight.pack(rank, to, flight.own());
      to = place(to, flight.block_count(flight.rank(), rank), flight.own());
    }
  }
}

/// An all_to_all of blocks whose lengths count(from, to) has: out of the first half of staging, into the second.
template <class Count>
BucketTensor from_half_to_half(TwoLevelFlight& flight, int ranks, int rank, Count count) {
  BlockRows rows;
  std::int64_t sent = 0, received = 0;
  for (int from = 0; from < ranks; ++from) {
    for (int to = 0; to < ranks; ++to) {
      rows.push_back(count(from, to));
      if (from == rank) sent += rows.back();
      if (to == rank) received += rows.back();
    }
  }
  return {list_of(flight.staging(), sent, flight.own()), list_of(flight.second_half(), received, flight.own()),
          rows_that_differ(std::move(rows))};
}

void exchange_all_to_all(TwoLevelFlight& flight) {
  const NodePlacement& placement = flight.placement();
  flight.start_inter_node({.kind = OpKind::all_to_all},
                          from_half_to_half(flight, placement.nodes(), placement.node, [&](int from, int to) {
                            return count_to_node(flight, rank_at(flight, from, placement.index), to);
                          }));
}

/// What has come is in the order of nodes, then of ranks here: it becomes that of ranks here, then of nodes.
void sort_all_to_all(TwoLevelFlight& flight) {
  const NodePlacement& placement = flight.placement();
  std::byte* to = flight.staging();
  for (const int rank : placement.mine()) {
    const std::byte* from = flight.second_half();
    for (int node = 0; node < placement.nodes(); ++node) {
      const int sender = rank_at(flight, node, placement.index);
      for (const int other : placement.mine()) {
        const std::size_t bytes = static_cast<std::size_t>(flight.block_count(sender, other)) * size_of(flight.own());
        if (other == rank) {
          std::memcpy(to, from, bytes);
          to += bytes;
        }
        from += bytes;
      }
    }
  }
}

void spread_all_to_all(TwoLevelFlight& flight) {
  const NodePlacement& placement = flight.placement();
  flight.start_intra_node({.kind = OpKind::all_to_all},
                          from_half_to_half(flight, placement.size(), placement.index, [&](int from, int to) {
                            return count_from_index(flight, from, rank_at(flight, placement.node, to));
                          }));
}

void finish_all_to_all(TwoLevelFlight& flight) {
  const NodePlacement& placement = flight.placement();
  const std::byte* from = flight.second_half();
  for (int index = 0; index < placement.size(); ++index) {
    for (int node = 0; node < placement.nodes(); ++node) {
      const int sender = rank_at(flight, node, index);
      flight.unpack(sender, from);
      from += static_cast<std::size_t>(flight.block_count(sender, flight.rank())) * size_of(flight.own());
    }
  }
}

}  // namespace

constinit const TwoLevelMethod two_level_all_gather{gather_blocks, exchange_blocks, nothing, spread_all_gather,
                                                    finish_all_gather};
constinit const TwoLevelMethod two_level_gather{gather_blocks, exchange_blocks, nothing, spread_gather, finish_gather};
constinit const TwoLevelMethod two_level_reduce_scatter{gather_sums_of_cells, exchange_sums_of_cells, take_section,
                                                        pass_on_cells, finish_cell};
constinit const TwoLevelMethod two_level_scatter{gather_scatter, exchange_scatter, take_section, pass_on_cells,
                                                 finish_cell};
constinit const TwoLevelMethod two_level_all_to_all{gather_all_to_all, exchange_all_to_all, sort_all_to_all,
                                                    spread_all_to_all, finish_all_to_all};

}  // namespace kolo
