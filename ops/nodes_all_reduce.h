#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include <kolo/backend.h>

#include "ops/device.h"
#include "ops/segment.h"

namespace kolo {

/// Where the ranks of a group are, as one of them sees it.
struct NodePlacement {
  std::vector<std::vector<int>> ranks;  ///< of each node, ascending; nodes in the order of their lowest ranks
  int node = 0;                         ///< this rank's
  int index = 0;                        ///< this rank's among those of its node

  const std::vector<int>& mine() const { return ranks[static_cast<std::size_t>(node)]; }
  /// Stripes that a tensor is cut into: as many as the smallest node has ranks.
  int stripes() const;
  bool holds_stripe() const { return index < stripes(); }
};

/// One bucket on its way: segment by segment, each reduced within the nodes (every holder gets its stripe), reduced between the
/// nodes' holders of a stripe, and handed round within the nodes.
///
/// Both levels run collectives of their own, which all their ranks must start in one order. Between nodes that is the order of the
/// segments. Within a node segment i + 1 is reduced before segment i is handed round: so while one crosses the network, the next
/// one is reduced. The operation holds its backend until it has started everything.
class NodesAllReduce final : public Operation {
 public:
  NodesAllReduce(const NodePlacement& placement, Backend* within, Backend* between, const SegmentRule& rule, Bucket bucket);
  NodesAllReduce(const NodesAllReduce&) = delete;
  NodesAllReduce& operator=(const NodesAllReduce&) = delete;

  bool step() override;
  bool needs_polling() const override { return true; }
  bool holds_backend() const override { return handed_round_ < segments_.size(); }

 private:
  enum class Stage { waiting, reducing, reduced, crossing, crossed, handing_round, complete };
  struct Part {
    Segment segment;
    Stage stage = Stage::waiting;
    std::byte* in = nullptr;   // the segment's elements, side by side
    std::byte* out = nullptr;
    DeviceBuffer staging;
    std::vector<std::unique_ptr<Operation>> running;
  };

  bool advance(Part& part);
  bool start_next();
  void lay_out(Part& part);
  void reduce_within(Part& part);
  void reduce_between(Part& part);
  void hand_round(Part& part);
  void put_back(Part& part);
  Tensor stripe(std::byte* begin, const Part& part, int number) const;
  Signature signature(OpKind kind, ReduceOp op) const;
  std::vector<int> absent_here() const;
  bool node_absent(std::size_t node) const;

  const NodePlacement& placement_;
  Backend* within_;
  Backend* between_;
  Bucket bucket_;
  std::vector<Part> segments_;
  std::size_t reduced_ = 0;       // segments whose first stage has been started
  std::size_t crossed_ = 0;       // …second…
  std::size_t handed_round_ = 0;  // …third…
  std::size_t complete_ = 0;
};

}  // namespace kolo
