#include "ops/two_level/gpu_nodes_all_reduce.h"

#include <algorithm>
#include <utility>

#include "ops/bucket.h"

namespace kolo {

bool goes_by_nodes(const Signature& signature) {
  if (signature.kind != OpKind::all_reduce || signature.device != DeviceKind::cuda) return false;
  const bool average = signature.op == ReduceOp::average;
  const bool scales = signature.prescale != 1 || signature.postscale != 1;
  if ((signature.op == ReduceOp::sum || average) && is_floating_point(signature.dtype)) return true;
  return !average && !scales && reducible(signature.op, signature.dtype);
}

GpuNodesAllReduce::GpuNodesAllReduce(std::shared_ptr<GpuLevels> levels, const Bucket& bucket)
    : levels_(std::move(levels)),
      placement_(levels_->placement),
      bucket_(bucket),
      dtype_(bucket.signature.dtype),
      device_{DeviceKind::cuda, levels_->gpu.index()} {
  const auto next = [&](BucketPosition from) { return segment_at(bucket_, 1, from, levels_->rule); };
  for (Segment segment = next({}); segment.count > 0; segment = next(segment.next))
    parts_.emplace_back().segment = segment;
  if (!levels_->timed) return;
  for (const auto& ready : bucket_.ready) ready->order(levels_->stream.get());
  begin_ = levels_->gpu.mark(levels_->stream.get(), true);
}

GpuNodesAllReduce::~GpuNodesAllReduce() {
  if (complete_ == parts_.size()) return;
  for (Part& part : parts_) part.staging.leak();  // the gpu may still write there
}

/// What fails on a level fails for good: the other level cannot take back what it has begun.
bool GpuNodesAllReduce::step() {
  try {
    return advance();
  } catch (const OperationFault& fault) {
    throw Error(fault.failure());
  }
}

bool GpuNodesAllReduce::advance() {
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t i = complete_; i < reduced_; ++i) moved |= advance(parts_[i]);
    while (crossed_ < reduced_ && parts_[crossed_].stage == Stage::reduced) {
      reduce_between(parts_[crossed_++]);
      moved = true;
    }
    moved |= start_next();
    while (complete_ < parts_.size() && parts_[complete_].stage == Stage::complete) ++complete_;
  }
  const auto on_its_way = [](const Part& part) { return part.stage >= Stage::handed; };
  if (!result_ && std::ranges::all_of(parts_, on_its_way))
    result_ = levels_->gpu.mark(levels_->stream.get(), levels_->timed);
  return result_ && complete_ == parts_.size() && result_->passed();
}

std::optional<double> GpuNodesAllReduce::seconds() const {
  if (!begin_) return std::nullopt;
  return levels_->gpu.seconds_between(*begin_, *result_);
}

/// Steps what runs for a part. It is a stage further when the results of what was started for the stage are on their
/// way.
bool GpuNodesAllReduce::advance(Part& part) {
  for (Running& running : part.running) {
    if (running.complete) continue;
    running.complete = running.operation->step();
    running.result = running.operation->result();
  }
  if (part.stage == Stage::handed) {
    const bool ended = std::ranges::all_of(part.running, [](const Running& running) { return running.complete; });
    if (!ended || !part.done->passed()) return false;
    if (part.staging.data()) levels_->staging.push_back(std::move(part.staging));
    part.running.clear();
    part.stage = Stage::complete;
    return true;
  }
  if (part.stage != Stage::reducing && part.stage != Stage::crossing && part.stage != Stage::handing_round)
    return false;
  Points results;
  for (std::size_t i = part.started_before; i < part.running.size(); ++i) {
    results.push_back(part.running[i].result);
    if (!results.back()) return false;
  }
  if (!results.empty()) part.ready = std::move(results);
  part.started_before = part.running.size();
  part.stage = static_cast<Stage>(static_cast<int>(part.stage) + 1);
  if (part.stage == Stage::handed) put_back(part);
  return true;
}

/// Starts the next collective within the node, if its turn has come: the same one on all ranks of the node.
bool GpuNodesAllReduce::start_next() {
  if (reduced_ < parts_.size() && reduced_ <= handed_round_ + GpuLevels::ahead) {
    Part& next = parts_[reduced_];
    if (!next.segment.single && levels_->staging.empty()) return false;
    reduce_within(next);
    ++reduced_;
    return true;
  }
  if (handed_round_ == parts_.size() || parts_[handed_round_].stage != Stage::crossed) return false;
  hand_round(parts_[handed_round_++]);
  return true;
}

/// The part's elements where they are, if they lie side by side; else in staging.
void GpuNodesAllReduce::lay_out(Part& part) {
  part.ready = bucket_.ready;
  if (part.segment.single) {
    const auto [index, offset] = part.segment.position;
    part.in = address(bucket_.tensors[index].in, offset);
    part.out = address(bucket_.tensors[index].out, offset);
    return;
  }
  part.staging = std::move(levels_->staging.back());
  levels_->staging.pop_back();
  part.in = part.out = part.staging.data();
  for (const auto& ready : part.ready) ready->order(levels_->stream.get());
  std::vector<PackItem> moves;
  std::byte* next = part.in;
  for_each_piece(bucket_, 1, part.segment.position, part.segment.count, [&](const Piece& piece) {
    moves.push_back({address(bucket_.tensors[piece.tensor].in, piece.offset), next, piece.count});
    next += static_cast<std::size_t>(piece.count) * size_of(dtype_);
  });
  levels_->mover.move(std::move(moves), {dtype_, dtype_});
  part.ready = {levels_->gpu.mark(levels_->stream.get())};
}

void GpuNodesAllReduce::put_back(Part& part) {
  for (const auto& ready : part.ready) ready->order(levels_->stream.get());
  if (!part.segment.single) {
    std::vector<PackItem> moves;
    const std::byte* next = part.out;
    for_each_piece(bucket_, 1, part.segment.position, part.segment.count, [&](const Piece& piece) {
      moves.push_back({next, address(bucket_.tensors[piece.tensor].out, piece.offset), piece.count});
      next += static_cast<std::size_t>(piece.count) * size_of(dtype_);
    });
    levels_->mover.move(std::move(moves), {dtype_, dtype_});
  }
  part.done = levels_->gpu.mark(levels_->stream.get());
}

Tensor GpuNodesAllReduce::stripe(std::byte* begin, const Part& part, int number) const {
  const RowRange range = rows_of_rank(part.segment.count, placement_.stripes(), number);
  return {begin + static_cast<std::size_t>(range.begin) * size_of(dtype_), Shape{range.count()}, dtype_, device_};
}

/// By what an average's sum is divided.
int GpuNodesAllReduce::divisor() const {
  if (bucket_.signature.op != ReduceOp::average) return 1;
  if (bucket_.divide_by != 0) return bucket_.divide_by;
  std::size_t ranks = 0;
  for (const auto& node : placement_.ranks) ranks += node.size();
  return static_cast<int>(bucket_.signature.divide_by_group ? ranks : ranks - bucket_.absent.size());
}

/// A sum of many f16 may be too large for one, where their average is not.
bool GpuNodesAllReduce::divides_first() const {
  return dtype_ == DType::f16 && bucket_.signature.op == ReduceOp::average;
}

void GpuNodesAllReduce::start(Part& part, Backend& level, Signature signature, const BucketTensor& tensor,
                              std::vector<int> absent) {
  signature.dtype = dtype_;
  signature.device = DeviceKind::cuda;
  signature.shape = tensor.in.shape;
  Bucket bucket{std::move(signature), {tensor}, std::move(absent)};
  bucket.ready = part.ready;
  part.running.emplace_back(level, std::move(bucket));
}

void GpuNodesAllReduce::reduce_within(Part& part) {
  lay_out(part);
  part.stage = Stage::reducing;
  const std::vector<int> absent = absent_in_node(placement_, bucket_.absent, placement_.node);
  const int ranks = static_cast<int>(placement_.mine().size()), stripes = placement_.stripes();
  if (static_cast<int>(absent.size()) == ranks) return;  // nothing here counts
  if (ranks == 1) return scale_alone(part);
  Signature signature{.kind = OpKind::reduce_scatter, .op = bucket_.signature.op};
  if (signature.op == ReduceOp::average) signature.op = ReduceOp::sum;
  signature.prescale = bucket_.signature.prescale / (divides_first() ? divisor() : 1);
  if (ranks == stripes) {
    return start(part, *levels_->within, signature, {whole(part.in, part), stripe(part.out, part, placement_.index)},
                 absent);
  }
  signature.kind = OpKind::reduce;
  for (int s = 0; s < stripes; ++s) {
    signature.root = s;
    const Tensor sums = placement_.index == s ? stripe(part.out, part, s) : Tensor{};
    start(part, *levels_->within, signature, {stripe(part.in, part, s), sums}, absent);
  }
}

void GpuNodesAllReduce::scale_alone(Part& part) {
  const double factor = bucket_.signature.prescale / (divides_first() ? divisor() : 1);
  if (factor == 1 && part.in == part.out) return;
  for (const auto& ready : part.ready) ready->order(levels_->stream.get());
  levels_->mover.move({{part.in, part.out, part.segment.count}}, {dtype_, dtype_, factor});
  part.ready = {levels_->gpu.mark(levels_->stream.get())};
}

void GpuNodesAllReduce::reduce_between(Part& part) {
  part.stage = Stage::crossing;
  if (!placement_.holds_stripe()) return;
  Signature signature{.kind = OpKind::all_reduce, .op = bucket_.signature.op};
  if (divides_first()) signature.op = ReduceOp::sum;
  signature.postscale = bucket_.signature.postscale;
  std::vector<int> absent;
  for (std::size_t node = 0; node < placement_.ranks.size(); ++node) {
    if (node_absent(placement_, bucket_.absent, node)) absent.push_back(static_cast<int>(node));
  }
  const Tensor mine = stripe(part.out, part, placement_.index);
  signature.dtype = dtype_;
  signature.device = DeviceKind::cuda;
  signature.shape = mine.shape;
  Bucket bucket{std::move(signature), {{mine, mine}}, std::move(absent)};
  bucket.ready = part.ready;
  bucket.divide_by = divisor();
  part.running.emplace_back(*levels_->between, std::move(bucket));
}

void GpuNodesAllReduce::hand_round(Part& part) {
  part.stage = Stage::handing_round;
  const int ranks = static_cast<int>(placement_.mine().size()), stripes = placement_.stripes();
  if (ranks == 1) return;
  if (ranks == stripes) {
    BucketTensor tensor{stripe(part.out, part, placement_.index), whole(part.out, part)};
    if (part.segment.count % stripes != 0) {
      BlockRows rows;
      for (int s = 0; s < stripes; ++s) rows.push_back(rows_of_rank(part.segment.count, stripes, s).count());
      tensor.rows = std::make_shared<const BlockRows>(std::move(rows));
    }
    return start(part, *levels_->within, {.kind = OpKind::all_gather}, tensor);
  }
  for (int s = 0; s < stripes; ++s) {
    const Tensor values = stripe(part.out, part, s);
    start(part, *levels_->within, {.kind = OpKind::broadcast, .root = s}, {values, values});
  }
}

}  // namespace kolo
