#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <kolo/backend.h>

#include "ops/chunk.h"
#include "ops/host/host_buffer.h"
#include "ops/step_budget.h"
#include "ops/two_level/node_placement.h"

namespace kolo {

/// What the operations of a group use in turn: its two levels, and staging.
struct TwoLevels {
  /// Chunks of an operation that have been reduced intra-node and are not complete.
  static constexpr std::size_t most_in_flight = 4;
  /// Chunks that are reduced before an earlier one is gathered: an operation has to have these and one more.
  static constexpr std::size_t ahead = 2;

  /// Of a buffer of staging: room for a chunk in its type and in the carried one.
  std::size_t staging_bytes() const {
    return static_cast<std::size_t>(std::max<std::int64_t>(rule.largest, 64) * 3 / 2);
  }

  NodePlacement placement;
  std::unique_ptr<Backend> intra_node;  ///< null if this rank is alone on its node
  std::unique_ptr<Backend> inter_node;  ///< among the holders of this rank's stripe; null if it holds none
  ChunkRule rule;                       ///< in bytes of the carried type
  std::shared_ptr<BufferPool> staging;  ///< of all groups of this rank
  StepBudget budget;                    ///< of bytes, counted at each level and in each pass over them
  std::size_t staged_chunks = 0;        ///< how many buffers chunks of this group use now
  std::uint64_t staged_bytes = 0;       ///< copied into and out of staging so far
};

/// One bucket in flight, chunk by chunk: a reduce_scatter intra-node (every holder gets its stripe), an all_reduce
/// of each stripe inter-node, an all_gather intra-node.
///
/// Both levels run collectives of their own, which all their ranks must start in one order. Between nodes that is the
/// order of the chunks. Within a node some chunks are reduced ahead of the one that is gathered: while one is
/// on the network, the next ones are reduced. The operation holds its backend until it has started everything.
class TwoLevelAllReduce final : public Operation {
 public:
  TwoLevelAllReduce(std::shared_ptr<TwoLevels> levels, Bucket bucket);
  TwoLevelAllReduce(const TwoLevelAllReduce&) = delete;
  TwoLevelAllReduce& operator=(const TwoLevelAllReduce&) = delete;
  ~TwoLevelAllReduce() override;

  bool step() override;
  bool needs_polling() const override;
  bool moved() const override { return moved_; }
  bool holds_backend() const override { return gathered_ < chunks_.size(); }

 private:
  enum class Stage { waiting, reducing, reduced, exchanging, exchanged, gathering, complete };
  /// An operation on one of the levels.
  struct Running {
    Running(Backend& level, Bucket of)
        : bucket(std::make_unique<const Bucket>(std::move(of))), operation(level.start(*bucket)) {}
    std::unique_ptr<const Bucket> bucket;
    std::unique_ptr<Operation> operation;
  };
  struct InFlight {
    Chunk chunk;
    Stage stage = Stage::waiting;
    std::byte* in = nullptr;    // the chunk's elements, side by side, in the carried type
    std::byte* sums = nullptr;  // the same of what they are combined to
    std::byte* out = nullptr;   // the same, in the tensors' type
    HostBuffer staging;
    std::vector<Running> running;
  };

  bool advance(InFlight& flight);
  bool start_next();
  bool staged(const InFlight& flight) const { return carried_ != own_ || !flight.chunk.single; }
  void lay_out(InFlight& flight);
  void reduce_intra_node(InFlight& flight);
  void reduce_inter_node(InFlight& flight);
  void narrow(InFlight& flight);
  void gather_intra_node(InFlight& flight);
  void put_back(InFlight& flight);
  void count_staged(const InFlight& flight);
  Tensor stripe(std::byte* begin, DType dtype, const InFlight& flight, int number) const;
  Tensor whole(std::byte* begin, DType dtype, const InFlight& flight) const {
    return {begin, Shape{flight.chunk.count}, dtype, {}};
  }
  void start_intra_node(InFlight& flight, OpKind kind, int root, const BucketTensor& tensor);
  ReduceOp intra_node_op() const {
    return bucket_.signature.op == ReduceOp::average ? ReduceOp::sum : bucket_.signature.op;
  }

  std::shared_ptr<TwoLevels> levels_;
  const NodePlacement& placement_;
  Bucket bucket_;
  DType own_, carried_;
  std::vector<InFlight> chunks_;
  std::uint64_t round_ = 0;
  std::size_t reduced_ = 0;    // chunks whose first stage has been started
  std::size_t exchanged_ = 0;  // …second…
  std::size_t gathered_ = 0;   // …third…
  std::size_t complete_ = 0;
  bool moved_ = false;  // at the last step
};

}  // namespace kolo
