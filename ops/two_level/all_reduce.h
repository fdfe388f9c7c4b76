#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <kolo/backend.h>

#include "ops/host/host_buffer.h"
#include "ops/segment.h"
#include "ops/two_level/node_placement.h"

namespace kolo {

/// The type in which the values of a node's ranks, once combined, travel to other nodes: one that keeps all that rank
/// order would have kept in its accumulator. That is f32 for 16-bit floats and 64 bits for integers that are averaged
/// or scaled; the type itself where nothing is lost that way. Nothing for averages of 64-bit integers.
std::optional<DType> carried_type(const Signature& signature);

/// What the operations of a group use in turn: its two levels, and staging.
struct NodeLevels {
  static constexpr std::size_t most_under_way =
      4;  ///< segments of an operation that have been reduced within the node and are not complete

  NodePlacement placement;
  std::unique_ptr<Backend> within;   ///< among the ranks of this node; null if this one is alone
  std::unique_ptr<Backend> between;  ///< among the ranks that hold the same stripe; null if this one holds none
  SegmentRule rule;                  ///< in bytes of the carried type
  std::vector<HostBuffer>
      staging;  ///< what no segment uses now: each has room for one, in its type and in the carried one
  std::uint64_t staged_bytes = 0;  ///< copied into and out of staging so far
};

/// One bucket on its way: segment by segment, each reduced within the nodes (every holder gets its stripe), reduced
/// between the nodes' holders of a stripe, and handed round within the nodes.
///
/// Both levels run collectives of their own, which all their ranks must start in one order. Between nodes that is the
/// order of the segments. Within a node some segments are reduced ahead of the one that is handed round: so while one
/// crosses the network, the next ones are reduced. The operation holds its backend until it has started everything.
class NodesAllReduce final : public Operation {
 public:
  NodesAllReduce(std::shared_ptr<NodeLevels> levels, Bucket bucket);
  NodesAllReduce(const NodesAllReduce&) = delete;
  NodesAllReduce& operator=(const NodesAllReduce&) = delete;
  ~NodesAllReduce() override;

  bool step() override;
  bool needs_polling() const override;
  bool holds_backend() const override { return handed_round_ < segments_.size(); }

 private:
  enum class Stage { waiting, reducing, reduced, crossing, crossed, handing_round, complete };
  /// An operation on one of the levels.
  struct Running {
    Running(Backend& level, Bucket of)
        : bucket(std::make_unique<const Bucket>(std::move(of))), operation(level.start(*bucket)) {}
    std::unique_ptr<const Bucket> bucket;
    std::unique_ptr<Operation> operation;
  };
  struct Part {
    Segment segment;
    Stage stage = Stage::waiting;
    std::byte* in = nullptr;    // the segment's elements, side by side, in the carried type
    std::byte* sums = nullptr;  // the same of what they are combined to
    std::byte* out = nullptr;   // the same, in the tensors' type
    HostBuffer staging;
    std::vector<Running> running;
  };

  bool advance(Part& part);
  bool start_next();
  bool staged(const Part& part) const { return carried_ != own_ || !part.segment.single; }
  void lay_out(Part& part);
  void reduce_within(Part& part);
  void reduce_between(Part& part);
  void narrow(Part& part);
  void hand_round(Part& part);
  void put_back(Part& part);
  Tensor stripe(std::byte* begin, DType dtype, const Part& part, int number) const;
  Tensor whole(std::byte* begin, DType dtype, const Part& part) const {
    return {begin, Shape{part.segment.count}, dtype, {}};
  }
  void start_within(Part& part, OpKind kind, int root, const BucketTensor& tensor);
  ReduceOp op_within() const {
    return bucket_.signature.op == ReduceOp::average ? ReduceOp::sum : bucket_.signature.op;
  }

  std::shared_ptr<NodeLevels> levels_;
  const NodePlacement& placement_;
  Bucket bucket_;
  DType own_, carried_;
  std::vector<Part> segments_;
  std::size_t reduced_ = 0;       // segments whose first stage has been started
  std::size_t crossed_ = 0;       // …second…
  std::size_t handed_round_ = 0;  // …third…
  std::size_t complete_ = 0;
};

}  // namespace kolo
