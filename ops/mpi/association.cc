#include "ops/mpi/association.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <utility>

#include "ops/kernels/convert.h"

namespace kolo {
namespace {

using Sources = std::vector<const void*>;
using NodeSources = std::vector<Sources>;  // by domain

constexpr std::size_t block_elements = 512;

/// Partial sums of a block of elements, in the type that carries them.
struct alignas(64) Block {
  std::array<std::byte, block_elements * 8> bytes;
};

/// Sums of floats, block by block. As deep as a tree of 2^30 nodes.
class TreeOfSums {
 public:
  TreeOfSums(const Reduction& reduction, const std::vector<NodeSources>& nodes)
      : reduction_(reduction),
        nodes_(nodes),
        carried_(reduction.dtype == DType::f64 ? DType::f64 : DType::f32),
        within_{carried_, reduction.op == ReduceOp::average ? ReduceOp::sum : reduction.op},
        last_{carried_, reduction.op, 1, reduction.postscale, reduction.divide_by} {}

  void run(std::size_t begin, std::size_t count, std::byte* destination) {
    const NodeTree tree{static_cast<int>(nodes_.size())};
    std::size_t depth = 0;
    for (int i = 0; i < tree.base(); ++i) {
      sum_of_node(i, begin, count, sums_[depth++]);
      if (i + tree.base() < tree.nodes) {
        sum_of_node(i + tree.base(), begin, count, sums_[depth]);
        combine(within_, sums_[depth - 1], &sums_[depth], count);
      }
      for (int bit = 1; (i & bit) != 0; bit *= 2, --depth) combine(within_, sums_[depth - 2], &sums_[depth - 1], count);
    }
    combine(last_, sums_[0], nullptr, count);
    if (carried_ == reduction_.dtype)
      std::memcpy(destination, &sums_[0], count * size_of(carried_));
    else
      convert(carried_, &sums_[0], reduction_.dtype, destination, count);
  }

 private:
  /// The sum, or of one block what scales make of it, becomes the first.
  static void combine(const Reduction& how, Block& sum, const Block* other, std::size_t count) {
    const std::array<const void*, 2> sources{&sum, other};
    void* const destination = &sum;
    kolo::reduce(how, std::span(sources).first(other ? 2 : 1), {&destination, 1}, count);
  }

  void sum_of_node(int node, std::size_t begin, std::size_t count, Block& sum) {
    const NodeSources& domains = nodes_[static_cast<std::size_t>(node)];
    sum_of_domain(domains.front(), begin, count, sum);
    for (std::size_t i = 1; i < domains.size(); ++i) {
      sum_of_domain(domains[i], begin, count, domain_);
      combine(within_, sum, &domain_, count);
    }
  }

  void sum_of_domain(Sources sources, std::size_t begin, std::size_t count, Block& sum) {
    for (const void*& source : sources)
      source = static_cast<const std::byte*>(source) + begin * size_of(reduction_.dtype);
    void* const total = &sum;
    const Reduction scaled{carried_, within_.op, reduction_.prescale};
    if (carried_ == reduction_.dtype) return kolo::reduce(scaled, sources, {&total, 1}, count);
    for (std::size_t i = 0; i < sources.size(); ++i) {
      Block& value = i == 0 ? sum : value_;
      convert(reduction_.dtype, sources[i], carried_, &value, count);
      if (reduction_.prescale != 1) combine(scaled, value, nullptr, count);
      if (i > 0) combine(within_, sum, &value, count);
    }
  }

  const Reduction& reduction_;
  const std::vector<NodeSources>& nodes_;
  const DType carried_;
  const Reduction within_, last_;
  std::array<Block, 32> sums_;
  Block domain_, value_;
};

}  // namespace

Association::Association(const RankPlaces& places, const std::vector<int>& members) : ranks_(members.size()) {
  const auto number = [](const std::vector<int>& of, int rank) {
    return of.empty() ? 0 : of[static_cast<std::size_t>(rank)];
  };
  std::map<int, std::size_t> nodes;                            // in the order of their lowest ranks
  std::map<std::pair<std::size_t, int>, std::size_t> domains;  // of each node, likewise
  for (std::size_t rank = 0; rank < ranks_; ++rank) {
    const std::size_t node = nodes.try_emplace(number(places.node_of, members[rank]), nodes.size()).first->second;
    if (node == nodes_.size()) nodes_.emplace_back();
    auto& here = nodes_[node];
    const std::pair key{node, number(places.domain_of, members[rank])};
    const std::size_t domain = domains.try_emplace(key, here.size()).first->second;
    if (domain == here.size()) here.emplace_back();
    here[domain].push_back(static_cast<int>(rank));
  }
  const auto& first = nodes_.front();
  in_rank_order_ = (nodes_.size() == 1 && (first.size() == 1 || first.size() == ranks_)) || ranks_ == 2;
}

void Association::reduce(const Reduction& reduction, std::span<const void* const> sources, void* destination,
                         std::size_t count) const {
  if (count == 0) return;
  if (in_rank_order_ || !is_floating_point(reduction.dtype)) {
    Sources present(sources.begin(), sources.end());
    std::erase(present, nullptr);
    return kolo::reduce(reduction, present, {&destination, 1}, count);
  }
  std::vector<NodeSources> nodes;
  for (const auto& domains : nodes_) {
    NodeSources node;
    for (const auto& ranks : domains) {
      Sources present;
      for (const int rank : ranks) {
        if (const void* const source = sources[static_cast<std::size_t>(rank)]) present.push_back(source);
      }
      if (!present.empty()) node.push_back(std::move(present));
    }
    if (!node.empty()) nodes.push_back(std::move(node));
  }
  TreeOfSums tree(reduction, nodes);
  for (std::size_t begin = 0; begin < count; begin += block_elements)
    tree.run(begin, std::min(block_elements, count - begin),
             static_cast<std::byte*>(destination) + begin * size_of(reduction.dtype));
}

}  // namespace kolo
