#include "ops/two_level/all_reduce.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "ops/bucket.h"
#include "ops/kernels/convert.h"
#include "ops/kernels/reduce.h"

namespace kolo {
namespace {

constexpr std::size_t ahead = 2;  // segments that are reduced before an earlier one is handed round

/// Scales the rule, which counts bytes of the carried type, to a bucket's own.
SegmentRule rule_for(const SegmentRule& rule, DType own, DType carried) {
  const auto ratio = static_cast<std::int64_t>(size_of(carried) / size_of(own));
  return {rule.largest / ratio, rule.direct / ratio};
}

}  // namespace

std::optional<DType> carried_type(const Signature& signature) {
  const bool scales = signature.prescale != 1 || signature.postscale != 1;
  const bool average = signature.op == ReduceOp::average;
  switch (signature.dtype) {
    case DType::f16:
    case DType::bf16:
      return !scales && (signature.op == ReduceOp::min || signature.op == ReduceOp::max) ? signature.dtype : DType::f32;
    case DType::i8:
    case DType::i16:
    case DType::i32: return scales || average ? DType::i64 : signature.dtype;
    case DType::u8:
    case DType::u16:
    case DType::u32: return scales || average ? DType::u64 : signature.dtype;
    case DType::i64:
    case DType::u64:
      if (average) return std::nullopt;
      return signature.dtype;
    case DType::f64:
    case DType::f32:
    case DType::boolean: break;
  }
  return signature.dtype;
}

NodesAllReduce::NodesAllReduce(std::shared_ptr<NodeLevels> levels, Bucket bucket)
    : levels_(std::move(levels)),
      placement_(levels_->placement),
      bucket_(std::move(bucket)),
      own_(bucket_.signature.dtype),
      carried_(*carried_type(bucket_.signature)) {
  const SegmentRule rule = rule_for(levels_->rule, own_, carried_);
  for (Segment segment = segment_at(bucket_, 1, {}, rule); segment.count > 0;
       segment = segment_at(bucket_, 1, segment.next, rule)) {
    segments_.emplace_back().segment = segment;
  }
}

NodesAllReduce::~NodesAllReduce() {
  for (Part& part : segments_) part.staging.leak();  // of what is not complete: MPI may still write there
}

bool NodesAllReduce::needs_polling() const {
  return std::any_of(segments_.begin(), segments_.end(), [](const Part& part) {
    return std::any_of(part.running.begin(), part.running.end(),
                       [](const Running& running) { return running.operation->needs_polling(); });
  });
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
  if (part.stage != Stage::reducing && part.stage != Stage::crossing && part.stage != Stage::handing_round)
    return false;
  std::erase_if(part.running, [](const Running& running) { return running.operation->step(); });
  if (!part.running.empty()) return false;
  part.stage = static_cast<Stage>(static_cast<int>(part.stage) + 1);
  if (part.stage == Stage::crossed) narrow(part);
  if (part.stage == Stage::complete) put_back(part);
  return true;
}

/// Starts the next collective within the node, if its turn has come: the same one on all ranks of the node.
bool NodesAllReduce::start_next() {
  const bool reduce_first = reduced_ < segments_.size() && reduced_ <= handed_round_ + ahead;
  if (reduce_first) {
    Part& next = segments_[reduced_];
    if (reduced_ >= complete_ + NodeLevels::most_under_way || (staged(next) && levels_->staging.empty())) return false;
    reduce_within(next);
    ++reduced_;
    return true;
  }
  if (handed_round_ == segments_.size() || segments_[handed_round_].stage != Stage::crossed) return false;
  hand_round(segments_[handed_round_++]);
  return true;
}

/// The segment's elements where they are, if they lie side by side and are carried as they are; else in staging.
void NodesAllReduce::lay_out(Part& part) {
  const std::size_t size = size_of(own_);
  if (part.segment.single) {
    const BucketTensor& tensor = bucket_.tensors[part.segment.position.tensor];
    part.in = address(tensor.in, part.segment.position.offset);
    part.sums = part.out = address(tensor.out, part.segment.position.offset);
  }
  if (!staged(part)) return;
  part.staging = std::move(levels_->staging.back());
  levels_->staging.pop_back();
  part.in = part.sums = part.staging.data();
  if (!part.segment.single) part.out = part.in;
  if (!part.segment.single && carried_ != own_)
    part.out += static_cast<std::size_t>(part.segment.count) * size_of(carried_);
  std::byte* place = part.in;
  for_each_piece(bucket_, 1, part.segment.position, part.segment.count, [&](const Piece& piece) {
    const auto count = static_cast<std::size_t>(piece.count);
    const std::byte* const from = address(bucket_.tensors[piece.tensor].in, piece.offset);
    carried_ == own_ ? void(std::memcpy(place, from, count * size)) : convert(own_, from, carried_, place, count);
    place += count * size_of(carried_);
  });
  levels_->staged_bytes += static_cast<std::size_t>(part.segment.count) * size;
}

/// This rank's stripe of the result, in the tensors' type.
void NodesAllReduce::narrow(Part& part) {
  if (carried_ == own_ || !placement_.holds_stripe()) return;
  const Tensor from = stripe(part.sums, carried_, part, placement_.index),
               to = stripe(part.out, own_, part, placement_.index);
  convert(carried_, from.data, own_, to.data, static_cast<std::size_t>(from.elements()));
}

void NodesAllReduce::put_back(Part& part) {
  if (!staged(part)) return;
  const std::size_t size = size_of(own_);
  const std::byte* place = part.out;
  for_each_piece(bucket_, 1, part.segment.position, part.segment.count, [&](const Piece& piece) {
    const std::size_t bytes = static_cast<std::size_t>(piece.count) * size;
    if (!part.segment.single) std::memcpy(address(bucket_.tensors[piece.tensor].out, piece.offset), place, bytes);
    place += bytes;
  });
  levels_->staged_bytes += static_cast<std::size_t>(part.segment.count) * size;
  levels_->staging.push_back(std::move(part.staging));
}

Tensor NodesAllReduce::stripe(std::byte* begin, DType dtype, const Part& part, int number) const {
  const RowRange range = rows_of_rank(part.segment.count, placement_.stripes(), number);
  return {begin + static_cast<std::size_t>(range.begin) * size_of(dtype), Shape{range.count()}, dtype, {}};
}

void NodesAllReduce::start_within(Part& part, OpKind kind, int root, const BucketTensor& tensor) {
  Bucket bucket{{.kind = kind, .dtype = tensor.in.dtype, .root = root, .shape = tensor.in.shape}, {tensor}};
  if (reduces(kind)) {
    bucket.signature.op = op_within();
    bucket.signature.prescale = bucket_.signature.prescale;
    bucket.absent = absent_in_node(placement_, bucket_.absent, placement_.node);
  }
  part.running.emplace_back(*levels_->within, std::move(bucket));
}

void NodesAllReduce::reduce_within(Part& part) {
  lay_out(part);
  part.stage = Stage::reducing;
  if (node_absent(placement_, bucket_.absent, static_cast<std::size_t>(placement_.node)))
    return;  // nothing here counts
  const int ranks = static_cast<int>(placement_.mine().size()), stripes = placement_.stripes();
  if (ranks == 1) {
    const void* source = part.in;
    void* destination = part.sums;
    reduce({carried_, op_within(), bucket_.signature.prescale}, {&source, 1}, {&destination, 1},
           static_cast<std::size_t>(part.segment.count));
  } else if (ranks == stripes) {
    start_within(part, OpKind::reduce_scatter, 0,
                 {whole(part.in, carried_, part), stripe(part.sums, carried_, part, placement_.index)});
  } else {
    for (int s = 0; s < stripes; ++s) {
      const Tensor sums = placement_.index == s ? stripe(part.sums, carried_, part, s) : Tensor{};
      start_within(part, OpKind::reduce, s, {stripe(part.in, carried_, part, s), sums});
    }
  }
}

void NodesAllReduce::reduce_between(Part& part) {
  part.stage = Stage::crossing;
  if (!placement_.holds_stripe()) return;
  const Tensor mine = stripe(part.sums, carried_, part, placement_.index);
  Bucket bucket{
      {.op = bucket_.signature.op, .dtype = carried_, .postscale = bucket_.signature.postscale, .shape = mine.shape},
      {{mine, mine}}};
  for (std::size_t node = 0; node < placement_.ranks.size(); ++node) {
    if (node_absent(placement_, bucket_.absent, node)) bucket.absent.push_back(static_cast<int>(node));
  }
  bucket.divide_by = bucket_.divide_by;
  part.running.emplace_back(*levels_->between, std::move(bucket));
}

void NodesAllReduce::hand_round(Part& part) {
  part.stage = Stage::handing_round;
  const int ranks = static_cast<int>(placement_.mine().size()), stripes = placement_.stripes();
  if (ranks == 1) return;
  if (ranks == stripes) {
    BucketTensor tensor{stripe(part.out, own_, part, placement_.index), whole(part.out, own_, part)};
    if (part.segment.count % stripes != 0) {
      BlockRows rows;
      for (int s = 0; s < stripes; ++s) rows.push_back(rows_of_rank(part.segment.count, stripes, s).count());
      tensor.rows = std::make_shared<const BlockRows>(std::move(rows));
    }
    return start_within(part, OpKind::all_gather, 0, tensor);
  }
  for (int s = 0; s < stripes; ++s) {
    const Tensor values = stripe(part.out, own_, part, s);
    start_within(part, OpKind::broadcast, s, {values, values});
  }
}

}  // namespace kolo
