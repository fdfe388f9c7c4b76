#include "ops/two_level/all_reduce.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "ops/bucket.h"
#include "ops/kernels/convert.h"
#include "ops/kernels/reduce.h"

namespace kolo {
namespace {

/// Scales the rule, which counts bytes of the carried type, to a bucket's own.
ChunkRule rule_for(const ChunkRule& rule, DType own, DType carried) {
  const auto ratio = static_cast<std::int64_t>(size_of(carried) / size_of(own));
  return {rule.largest / ratio, rule.direct / ratio};
}

}  // namespace

TwoLevelAllReduce::TwoLevelAllReduce(std::shared_ptr<TwoLevels> levels, Bucket bucket)
    : levels_(std::move(levels)),
      placement_(levels_->placement),
      bucket_(std::move(bucket)),
      own_(bucket_.signature.dtype),
      carried_(*carried_type(bucket_.signature)) {
  const ChunkRule rule = rule_for(levels_->rule, own_, carried_);
  for (Chunk chunk = chunk_at(bucket_, 1, {}, rule); chunk.count > 0; chunk = chunk_at(bucket_, 1, chunk.next, rule)) {
    chunks_.emplace_back().chunk = chunk;
  }
}

TwoLevelAllReduce::~TwoLevelAllReduce() {
  for (InFlight& flight : chunks_) {  // of what is not complete: others may still read and write there
    if (!flight.staging.data()) continue;
    levels_->staging->leak(std::move(flight.staging));
    --levels_->staged_chunks;
  }
}

bool TwoLevelAllReduce::needs_polling() const {
  return std::any_of(chunks_.begin(), chunks_.end(), [](const InFlight& flight) {
    return std::any_of(flight.running.begin(), flight.running.end(),
                       [](const Running& running) { return running.operation->needs_polling(); });
  });
}

bool TwoLevelAllReduce::step() {
  moved_ = false;
  levels_->budget.begin(round_);
  for (bool moved = true; moved && !levels_->budget.spent(); moved_ |= moved) {
    moved = false;
    for (std::size_t i = complete_; i < reduced_ && !levels_->budget.spent(); ++i) moved |= advance(chunks_[i]);
    while (exchanged_ < reduced_ && chunks_[exchanged_].stage == Stage::reduced) {
      reduce_inter_node(chunks_[exchanged_++]);
      moved = true;
    }
    moved |= !levels_->budget.spent() && start_next();
    while (complete_ < chunks_.size() && chunks_[complete_].stage == Stage::complete) ++complete_;
  }
  moved_ |= levels_->budget.spent();
  return complete_ == chunks_.size();
}

/// Steps what runs for a chunk; when all of that is complete, the chunk is a stage further.
bool TwoLevelAllReduce::advance(InFlight& flight) {
  if (flight.stage != Stage::reducing && flight.stage != Stage::exchanging && flight.stage != Stage::gathering)
    return false;
  std::erase_if(flight.running, [&](const Running& running) {
    const bool complete = running.operation->step();
    if (!complete && !running.operation->moved()) return false;
    levels_->budget.spend(static_cast<std::int64_t>(running.bucket->bytes()));  // its own budget may be spent
    moved_ = true;
    return complete;
  });
  if (!flight.running.empty()) return false;
  flight.stage = static_cast<Stage>(static_cast<int>(flight.stage) + 1);
  if (flight.stage == Stage::exchanged) narrow(flight);
  if (flight.stage == Stage::complete) put_back(flight);
  return true;
}

/// Starts the next collective within the node, if its turn has come: the same one on all ranks of the node.
bool TwoLevelAllReduce::start_next() {
  const bool reduce_first = reduced_ < chunks_.size() && reduced_ <= gathered_ + TwoLevels::ahead;
  if (reduce_first) {
    InFlight& next = chunks_[reduced_];
    const bool no_staging = staged(next) && levels_->staged_chunks == TwoLevels::most_in_flight;
    if (reduced_ >= complete_ + TwoLevels::most_in_flight || no_staging) return false;
    reduce_intra_node(next);
    ++reduced_;
    return true;
  }
  if (gathered_ == chunks_.size() || chunks_[gathered_].stage != Stage::exchanged) return false;
  gather_intra_node(chunks_[gathered_++]);
  return true;
}

/// The chunk's elements where they are, if they lie side by side and are carried as they are; else in staging.
void TwoLevelAllReduce::lay_out(InFlight& flight) {
  const std::size_t size = size_of(own_);
  if (flight.chunk.single) {
    const BucketTensor& tensor = bucket_.tensors[flight.chunk.position.tensor];
    flight.in = address(tensor.in, flight.chunk.position.offset);
    flight.sums = flight.out = address(tensor.out, flight.chunk.position.offset);
  }
  if (!staged(flight)) return;
  flight.staging = levels_->staging->take(levels_->staging_bytes());
  ++levels_->staged_chunks;
  flight.in = flight.sums = flight.staging.data();
  if (!flight.chunk.single) flight.out = flight.in;
  if (!flight.chunk.single && carried_ != own_)
    flight.out += static_cast<std::size_t>(flight.chunk.count) * size_of(carried_);
  std::byte* place = flight.in;
  for_each_segment(bucket_, 1, flight.chunk.position, flight.chunk.count, [&](const Segment& segment) {
    const auto count = static_cast<std::size_t>(segment.count);
    const std::byte* const from = address(bucket_.tensors[segment.tensor].in, segment.offset);
    carried_ == own_ ? void(std::memcpy(place, from, count * size)) : convert(own_, from, carried_, place, count);
    place += count * size_of(carried_);
  });
  count_staged(flight);
}

/// This rank's stripe of the result, in the tensors' type.
void TwoLevelAllReduce::narrow(InFlight& flight) {
  if (carried_ == own_ || !placement_.holds_stripe()) return;
  const Tensor from = stripe(flight.sums, carried_, flight, placement_.index),
               to = stripe(flight.out, own_, flight, placement_.index);
  convert(carried_, from.data, own_, to.data, static_cast<std::size_t>(from.elements()));
}

void TwoLevelAllReduce::put_back(InFlight& flight) {
  if (!staged(flight)) return;
  const std::size_t size = size_of(own_);
  const std::byte* place = flight.out;
  for_each_segment(bucket_, 1, flight.chunk.position, flight.chunk.count, [&](const Segment& segment) {
    const std::size_t bytes = static_cast<std::size_t>(segment.count) * size;
    if (!flight.chunk.single) std::memcpy(address(bucket_.tensors[segment.tensor].out, segment.offset), place, bytes);
    place += bytes;
  });
  count_staged(flight);
  levels_->staging->give_back(std::move(flight.staging));
  --levels_->staged_chunks;
}

void TwoLevelAllReduce::count_staged(const InFlight& flight) {
  const std::size_t bytes = static_cast<std::size_t>(flight.chunk.count) * size_of(own_);
  levels_->staged_bytes += bytes;
  levels_->budget.spend(static_cast<std::int64_t>(bytes));
}

Tensor TwoLevelAllReduce::stripe(std::byte* begin, DType dtype, const InFlight& flight, int number) const {
  const RowRange range = rows_of_rank(flight.chunk.count, placement_.stripes(), number);
  return {begin + static_cast<std::size_t>(range.begin) * size_of(dtype), Shape{range.count()}, dtype, {}};
}

void TwoLevelAllReduce::start_intra_node(InFlight& flight, OpKind kind, int root, const BucketTensor& tensor) {
  Bucket bucket{{.kind = kind, .dtype = tensor.in.dtype, .root = root, .shape = tensor.in.shape}, {tensor}};
  if (reduces(kind)) {
    bucket.signature.op = intra_node_op();
    bucket.signature.prescale = bucket_.signature.prescale;
    bucket.absent = absent_in_node(placement_, bucket_.absent, placement_.node);
  }
  flight.running.emplace_back(*levels_->intra_node, std::move(bucket));
}

void TwoLevelAllReduce::reduce_intra_node(InFlight& flight) {
  lay_out(flight);
  flight.stage = Stage::reducing;
  if (node_absent(placement_, bucket_.absent, static_cast<std::size_t>(placement_.node)))
    return;  // nothing here counts
  const int ranks = static_cast<int>(placement_.mine().size()), stripes = placement_.stripes();
  if (ranks == 1) {
    const void* source = flight.in;
    void* destination = flight.sums;
    reduce({carried_, intra_node_op(), bucket_.signature.prescale}, {&source, 1}, {&destination, 1},
           static_cast<std::size_t>(flight.chunk.count));
  } else if (ranks == stripes) {
    start_intra_node(flight, OpKind::reduce_scatter, 0,
                     {whole(flight.in, carried_, flight), stripe(flight.sums, carried_, flight, placement_.index)});
  } else {
    for (int s = 0; s < stripes; ++s) {
      const Tensor sums = placement_.index == s ? stripe(flight.sums, carried_, flight, s) : Tensor{};
      start_intra_node(flight, OpKind::reduce, s, {stripe(flight.in, carried_, flight, s), sums});
    }
  }
}

void TwoLevelAllReduce::reduce_inter_node(InFlight& flight) {
  flight.stage = Stage::exchanging;
  if (!placement_.holds_stripe()) return;
  const Tensor mine = stripe(flight.sums, carried_, flight, placement_.index);
  Bucket bucket{
      {.op = bucket_.signature.op, .dtype = carried_, .postscale = bucket_.signature.postscale, .shape = mine.shape},
      {{mine, mine}}};
  for (std::size_t node = 0; node < placement_.ranks.size(); ++node) {
    if (node_absent(placement_, bucket_.absent, node)) bucket.absent.push_back(static_cast<int>(node));
  }
  bucket.divide_by = bucket_.divide_by;
  flight.running.emplace_back(*levels_->inter_node, std::move(bucket));
}

void TwoLevelAllReduce::gather_intra_node(InFlight& flight) {
  flight.stage = Stage::gathering;
  const int ranks = static_cast<int>(placement_.mine().size()), stripes = placement_.stripes();
  if (ranks == 1) return;
  if (ranks == stripes) {
    BucketTensor tensor{stripe(flight.out, own_, flight, placement_.index), whole(flight.out, own_, flight)};
    if (flight.chunk.count % stripes != 0) {
      BlockRows rows;
      for (int s = 0; s < stripes; ++s) rows.push_back(rows_of_rank(flight.chunk.count, stripes, s).count());
      tensor.rows = std::make_shared<const BlockRows>(std::move(rows));
    }
    return start_intra_node(flight, OpKind::all_gather, 0, tensor);
  }
  for (int s = 0; s < stripes; ++s) {
    const Tensor values = stripe(flight.out, own_, flight, s);
    start_intra_node(flight, OpKind::broadcast, s, {values, values});
  }
}

}  // namespace kolo
