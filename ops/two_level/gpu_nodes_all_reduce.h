#pragma once

#include <memory>
#include <vector>

#include <kolo/backend.h>

#include "ops/gpu/packer.h"
#include "ops/segment.h"
#include "ops/two_level/node_placement.h"

namespace kolo {

/// What the operations of a group of ranks on several nodes use in turn, on one of them.
struct GpuLevels {
  static constexpr std::size_t ahead = 2;  ///< segments that are reduced before an earlier one is handed round
  static constexpr std::size_t most_under_way = ahead + 2;

  GpuLevels(Gpu& gpu, NodePlacement where, const SegmentRule& cut, bool is_timed)
      : gpu(gpu), placement(std::move(where)), rule(cut), timed(is_timed), stream(gpu, true), mover(gpu, stream.get()) {
    for (std::size_t i = 0; i < most_under_way; ++i) staging.emplace_back(gpu, static_cast<std::size_t>(cut.largest));
  }

  Gpu& gpu;
  NodePlacement placement;
  std::unique_ptr<Backend> within;   ///< among the ranks of this node; null if this one is alone
  std::unique_ptr<Backend> between;  ///< among the ranks that hold the same stripe; null if this one holds none
  SegmentRule rule;
  bool timed;         ///< how long buckets take on the gpu is measured
  CardStream stream;  ///< for packing
  Packer mover;
  std::vector<GpuBuffer> staging;  ///< what no segment uses now: each has room for one
};

/// Whether the levels combine to what one reduction would give, but for rounding: sums and averages of floats, and what
/// is neither averaged nor scaled.
bool goes_by_nodes(const Signature& signature);

/// One bucket on its way: segment by segment, each reduced within the nodes (every holder gets its stripe), reduced
/// between the nodes' holders of a stripe, and handed round within the nodes. A large tensor is not packed. Each stage
/// is started once the points are known after which its inputs hold their values: streams wait, not the host.
///
/// The order in which a node's collectives are started is the same on all of its ranks: it depends on the segments'
/// number only. The operation holds its backend until it has started everything.
class GpuNodesAllReduce final : public Operation {
 public:
  GpuNodesAllReduce(std::shared_ptr<GpuLevels> levels, const Bucket& bucket);
  GpuNodesAllReduce(const GpuNodesAllReduce&) = delete;
  GpuNodesAllReduce& operator=(const GpuNodesAllReduce&) = delete;
  ~GpuNodesAllReduce() override;

  bool step() override;
  bool needs_polling() const override { return true; }
  bool holds_backend() const override { return handed_round_ < parts_.size(); }
  std::shared_ptr<const DevicePoint> result() const override { return result_; }
  std::optional<double> seconds() const override;

 private:
  using Points = std::vector<std::shared_ptr<const DevicePoint>>;
  enum class Stage { waiting, reducing, reduced, crossing, crossed, handing_round, handed, complete };
  /// An operation on one of the levels.
  struct Running {
    Running(Backend& level, Bucket of)
        : bucket(std::make_unique<const Bucket>(std::move(of))), operation(level.start(*bucket)) {}
    std::unique_ptr<const Bucket> bucket;
    std::unique_ptr<Operation> operation;
    std::shared_ptr<const DevicePoint> result{};
    bool complete = false;
  };
  struct Part {
    Segment segment;
    Stage stage = Stage::waiting;
    std::byte* in = nullptr;
    std::byte* out = nullptr;
    GpuBuffer staging;  // unless the elements lie side by side already
    std::vector<Running> running;
    std::size_t started_before = 0;  // of those, in earlier stages
    Points ready;                    // after these the next stage's inputs hold their values
    std::shared_ptr<const DevicePoint> done;
  };

  bool advance();
  bool advance(Part& part);
  bool start_next();
  void lay_out(Part& part);
  void reduce_within(Part& part);
  void scale_alone(Part& part);
  void reduce_between(Part& part);
  void hand_round(Part& part);
  void put_back(Part& part);
  void start(Part& part, Backend& level, Signature signature, const BucketTensor& tensor, std::vector<int> absent = {});
  Tensor stripe(std::byte* begin, const Part& part, int number) const;
  Tensor whole(std::byte* begin, const Part& part) const { return {begin, Shape{part.segment.count}, dtype_, device_}; }
  int divisor() const;
  bool divides_first() const;

  std::shared_ptr<GpuLevels> levels_;
  const NodePlacement& placement_;
  const Bucket& bucket_;
  const DType dtype_;
  const Device device_;
  std::vector<Part> parts_;
  std::size_t reduced_ = 0;       // parts whose first stage has been started
  std::size_t crossed_ = 0;       // …second…
  std::size_t handed_round_ = 0;  // …third…
  std::size_t complete_ = 0;
  std::shared_ptr<const DevicePoint> begin_;  // if that is measured
  std::shared_ptr<const DevicePoint> result_;
};

}  // namespace kolo
