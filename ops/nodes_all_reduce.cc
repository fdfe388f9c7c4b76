#include "ops/nodes_all_reduce.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "ops/bucket.h"
#include "ops/reduce.h"

namespace kolo {
namespace {

constexpr std::size_t most_under_way = 4;  // segments that have been reduced within the node and are not complete

}  // namespace

int NodePlacement::stripes() const {
  std::size_t smallest = ranks.front().size();
  for (const auto& members : ranks) smallest = std::min(smallest, members.size());
  return static_cast<int>(smallest);
}

NodesAllReduce::NodesAllReduce(const NodePlacement& placement, Backend* within, Backend* between, const SegmentRule& rule, Bucket bucket)
    : placement_(placement), within_(within), between_(between), bucket_(std::move(bucket)) {
  for (Segment segment = segment_at(bucket_, 1, {}, rule); segment.count > 0; segment = segment_at(bucket_, 1, segment.next, rule)) {
    segments_.emplace_back().segment = segment;
  }
}

bool NodesAllReduce::step() {
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t i = complete_; i < reduced_; ++i) moved |= advance(segments_[i]);
    while (crossed_ < reduced_ && segments_[crossed_].stage == Stage::reduced) {
      reduce_between(segments_[crossed_++]);
      moved = true;
    }
    moved |= start_next();
    while (complete_ < segments_.size() && segments_[complete_].stage == Stage::complete) ++complete_;
  }
  return complete_ == segments_.size();
}

/// Steps what runs for a segment; when all of that is complete, the segment is a stage further.
bool NodesAllReduce::advance(Part& part) {
  if (part.stage != Stage::reducing && part.stage != Stage::crossing && part.stage != Stage::handing_round) return false;
  std::erase_if(part.running, [](const auto& operation) { return operation->step(); });
  if (!part.running.empty()) return false;
  part.stage = static_cast<Stage>(static_cast<int>(part.stage) + 1);
  if (part.stage == Stage::complete) put_back(part);
  return true;
}

/// Starts the next collective within the node, if its turn has come: the same one on all ranks of the node.
bool NodesAllReduce::start_next() {
  const bool reduce_first = reduced_ < segments_.size() && reduced_ <= handed_round_ + 1;
  if (reduce_first) {
    if (reduced_ >= complete_ + most_under_way) return false;
    reduce_within(segments_[reduced_++]);
    return true;
  }
  if (handed_round_ == segments_.size() || segments_[handed_round_].stage != Stage::crossed) return false;
  hand_round(segments_[handed_round_++]);
  return true;
}

/// The segment's elements where they are, if they lie side by side; else in staging.
void NodesAllReduce::lay_out(Part& part) {
  const std::size_t size = size_of(bucket_.signature.dtype);
  if (part.segment.single) {
    const BucketTensor& tensor = bucket_.tensors[part.segment.position.tensor];
    part.in = address(tensor.in, part.segment.position.offset);
    part.out = address(tensor.out, part.segment.position.offset);
    return;
  }
  part.staging = DeviceBuffer(Device{}, static_cast<std::size_t>(part.segment.count) * size);
  part.in = part.out = part.staging.data();
  std::byte* place = part.in;
  for_each_piece(bucket_, 1, part.segment.position, part.segment.count, [&](const Piece& piece) {
    const std::size_t bytes = static_cast<std::size_t>(piece.count) * size;
    std::memcpy(place, address(bucket_.tensors[piece.tensor].in, piece.offset), bytes);
    place += bytes;
  });
}

void NodesAllReduce::put_back(Part& part) {
  if (part.segment.single) return;
  const std::byte* place = part.out;
  for_each_piece(bucket_, 1, part.segment.position, part.segment.count, [&](const Piece& piece) {
    const std::size_t bytes = static_cast<std::size_t>(piece.count) * size_of(bucket_.signature.dtype);
    std::memcpy(address(bucket_.tensors[piece.tensor].out, piece.offset), place, bytes);
    place += bytes;
  });
  part.staging = {};
}

Tensor NodesAllReduce::stripe(std::byte* begin, const Part& part, int number) const {
  const RowRange range = rows_of_rank(part.segment.count, placement_.stripes(), number);
  const DType dtype = bucket_.signature.dtype;
  return {begin + static_cast<std::size_t>(range.begin) * size_of(dtype), Shape{range.count()}, dtype, {}};
}

Signature NodesAllReduce::signature(OpKind kind, ReduceOp op) const { return {.kind = kind, .op = op, .dtype = bucket_.signature.dtype}; }

std::vector<int> NodesAllReduce::absent_here() const {
  std::vector<int> absent;
  const auto& mine = placement_.mine();
  for (std::size_t i = 0; i < mine.size(); ++i) {
    if (std::ranges::binary_search(bucket_.absent, mine[i])) absent.push_back(static_cast<int>(i));
  }
  return absent;
}

bool NodesAllReduce::node_absent(std::size_t node) const {
  return std::ranges::all_of(placement_.ranks[node], [&](int rank) { return std::ranges::binary_search(bucket_.absent, rank); });
}

void NodesAllReduce::reduce_within(Part& part) {
  lay_out(part);
  part.stage = Stage::reducing;
  if (node_absent(static_cast<std::size_t>(placement_.node))) return;  // nothing here counts
  const ReduceOp op = bucket_.signature.op == ReduceOp::average ? ReduceOp::sum : bucket_.signature.op;
  const int ranks = static_cast<int>(placement_.mine().size()), stripes = placement_.stripes();
  if (ranks == 1) {
    const void* source = part.in;
    void* destination = part.out;
    reduce({bucket_.signature.dtype, op, bucket_.signature.prescale}, {&source, 1}, {&destination, 1}, static_cast<std::size_t>(part.segment.count));
    return;
  }
  const auto start = [&](OpKind kind, int root, const Tensor& in, const Tensor& out) {
    Bucket bucket{signature(kind, op), {{in, out}}, absent_here()};
    bucket.signature.root = root;
    bucket.signature.prescale = bucket_.signature.prescale;
    bucket.signature.shape = in.shape;
    part.running.push_back(within_->start(std::move(bucket)));
  };
  if (ranks == stripes) {
    start(OpKind::reduce_scatter, 0, {part.in, Shape{part.segment.count}, bucket_.signature.dtype, {}}, stripe(part.out, part, placement_.index));
  } else {
    for (int s = 0; s < stripes; ++s) start(OpKind::reduce, s, stripe(part.in, part, s), placement_.index == s ? stripe(part.out, part, s) : Tensor{});
  }
}

void NodesAllReduce::reduce_between(Part& part) {
  part.stage = Stage::crossing;
  if (!placement_.holds_stripe()) return;
  const Tensor mine = stripe(part.out, part, placement_.index);
  Bucket bucket{signature(OpKind::all_reduce, bucket_.signature.op), {{mine, mine}}, {}};
  bucket.signature.postscale = bucket_.signature.postscale;
  bucket.signature.shape = mine.shape;
  int present = 0;
  for (std::size_t node = 0; node < placement_.ranks.size(); ++node) {
    if (node_absent(node)) bucket.absent.push_back(static_cast<int>(node));
    present += static_cast<int>(placement_.ranks[node].size());
  }
  bucket.divide_by = bucket_.signature.divide_by_group ? present : present - static_cast<int>(bucket_.absent.size());
  part.running.push_back(between_->start(std::move(bucket)));
}

void NodesAllReduce::hand_round(Part& part) {
  part.stage = Stage::handing_round;
  const int ranks = static_cast<int>(placement_.mine().size()), stripes = placement_.stripes();
  if (ranks == 1) return;
  if (ranks == stripes) {
    BlockRows rows;
    for (int s = 0; s < stripes; ++s) rows.push_back(rows_of_rank(part.segment.count, stripes, s).count());
    const Tensor mine = stripe(part.out, part, placement_.index);
    Bucket bucket{signature(OpKind::all_gather, ReduceOp::sum), {{mine, {part.out, Shape{part.segment.count}, bucket_.signature.dtype, {}}}}, {}};
    bucket.signature.shape = mine.shape;
    if (part.segment.count % stripes != 0) bucket.tensors[0].rows = std::make_shared<const BlockRows>(std::move(rows));
    part.running.push_back(within_->start(std::move(bucket)));
    return;
  }
  for (int s = 0; s < stripes; ++s) {
    const Tensor values = stripe(part.out, part, s);
    Bucket bucket{signature(OpKind::broadcast, ReduceOp::sum), {{values, values}}, {}};
    bucket.signature.root = s;
    bucket.signature.shape = values.shape;
    part.running.push_back(within_->start(std::move(bucket)));
  }
}

}  // namespace kolo
