#include "ops/two_level/flight.h"

#include <cstring>
#include <string_view>
#include <utility>

#include "ops/kernels/convert.h"

namespace kolo {

const TwoLevelMethod* two_level_method(OpKind kind) {
  switch (kind) {
    case OpKind::all_reduce: return &two_level_all_reduce;
    case OpKind::reduce: return &two_level_reduce;
    case OpKind::broadcast: return &two_level_broadcast;
    case OpKind::reduce_scatter: return &two_level_reduce_scatter;
    case OpKind::all_gather: return &two_level_all_gather;
    case OpKind::gather: return &two_level_gather;
    case OpKind::scatter: return &two_level_scatter;
    case OpKind::all_to_all: return &two_level_all_to_all;
    default: return nullptr;
  }
}

TwoLevelFlight::~TwoLevelFlight() {
  if (!staging_.data()) return;  // of what is not complete: others may still read and write there
  levels_.staging->leak(std::move(staging_));
  --levels_.staged_chunks;
}

bool TwoLevelFlight::staged() const {
  const OpKind kind = signature().kind;
  return carried_ != own() || !chunk_.single || has_blocks(kind) || kind == OpKind::reduce;
}

void TwoLevelFlight::gather() {
  stage_ = Stage::gathering;
  method().gather(*this);
}

void TwoLevelFlight::exchange() {
  stage_ = Stage::exchanging;
  if (placement().holds_stripe()) method().exchange(*this);
}

void TwoLevelFlight::spread() {
  stage_ = Stage::spreading;
  method().spread(*this);
}

bool TwoLevelFlight::advance(bool& moved) {
  if (stage_ != Stage::gathering && stage_ != Stage::exchanging && stage_ != Stage::spreading) return false;
  std::erase_if(running_, [&](const Running& running) {
    const bool complete = running.operation->step();
    if (!complete && !running.operation->moved()) return false;
    levels_.budget.spend(static_cast<std::int64_t>(running.bucket->bytes()));  // its own budget may be spent
    moved = true;
    if (complete) note_method(*running.operation);
    return complete;
  });
  if (!running_.empty()) return false;
  stage_ = static_cast<Stage>(static_cast<int>(stage_) + 1);
  if (stage_ == Stage::exchanged && placement().holds_stripe()) method().arrived(*this);
  if (stage_ == Stage::complete) {
    method().finish(*this);
    if (staging_.data()) {
      levels_.staging->give_back(std::move(staging_));
      --levels_.staged_chunks;
    }
  }
  return true;
}

/// Who measures waits until nothing is a trial.
void TwoLevelFlight::note_method(const Operation& complete) {
  const char* const method = complete.method();
  if (*method != '\0' && !std::string_view(moved_by_).starts_with("trial:")) moved_by_ = method;
}

bool TwoLevelFlight::needs_polling() const {
  return std::ranges::any_of(running_, [](const Running& running) { return running.operation->needs_polling(); });
}

std::int64_t TwoLevelFlight::block_count(int from, int to) const {
  std::int64_t sum = 0;
  for_each_segment(bucket_, ranks(), chunk_.position, chunk_.count, [&](const Segment& segment) {
    const BucketTensor& tensor = bucket_.tensors[segment.tensor];
    const ElementRange block = in_block(signature().kind, tensor, ranks(), from, to);
    sum += std::clamp<std::int64_t>(block.count() - segment.offset, 0, segment.count);
  });
  return sum;
}

std::byte* TwoLevelFlight::staging() {
  if (!staging_.data()) {
    staging_ = levels_.staging->take(levels_.staging_bytes());
    ++levels_.staged_chunks;
  }
  return staging_.data();
}

void TwoLevelFlight::count_staged(std::int64_t elements) {
  const std::size_t bytes = static_cast<std::size_t>(elements) * size_of(own());
  levels_.staged_bytes += bytes;
  levels_.budget.spend(static_cast<std::int64_t>(bytes));
}

void TwoLevelFlight::pack(int peer, std::byte* to, DType type) {
  std::int64_t sum = 0;
  for_each_segment(bucket_, ranks(), chunk_.position, chunk_.count, [&](const Segment& segment) {
    const BucketTensor& tensor = bucket_.tensors[segment.tensor];
    const ElementRange block = in_block(signature().kind, tensor, ranks(), rank(), peer);
    const std::int64_t elements = std::clamp<std::int64_t>(block.count() - segment.offset, 0, segment.count);
    if (elements == 0) return;
    const auto count = static_cast<std::size_t>(elements);
    const std::byte* const from = address(tensor.in, block.begin + segment.offset);
    type == own() ? void(std::memcpy(to, from, count * size_of(own()))) : convert(own(), from, type, to, count);
    to += count * size_of(type);
    sum += elements;
  });
  count_staged(sum);
}

void TwoLevelFlight::unpack(int peer, const std::byte* from) {
  std::int64_t sum = 0;
  for_each_segment(bucket_, ranks(), chunk_.position, chunk_.count, [&](const Segment& segment) {
    const BucketTensor& tensor = bucket_.tensors[segment.tensor];
    const ElementRange block = out_block(signature().kind, tensor, ranks(), rank(), peer);
    const std::int64_t elements = std::clamp<std::int64_t>(block.count() - segment.offset, 0, segment.count);
    if (elements == 0) return;
    const std::size_t bytes = static_cast<std::size_t>(elements) * size_of(own());
    std::byte* const to = address(tensor.out, block.begin + segment.offset);
    if (to != from) std::memcpy(to, from, bytes);
    from += bytes;
    sum += elements;
  });
  count_staged(sum);
}

void TwoLevelFlight::start_intra_node(const Signature& signature, const BucketTensor& tensor) {
  if (!levels_.intra_node) return;
  Bucket bucket{signature, {tensor}};
  bucket.signature.dtype = tensor.in.dtype;
  bucket.signature.shape = tensor.in.shape;
  if (reduces(signature.kind)) bucket.absent = absent_in_node(placement(), bucket_.absent, placement().node);
  running_.emplace_back(*levels_.intra_node, std::move(bucket));
}

void TwoLevelFlight::start_inter_node(const Signature& signature, const BucketTensor& tensor) {
  Bucket bucket{signature, {tensor}};
  bucket.signature.dtype = tensor.in.dtype;
  bucket.signature.shape = tensor.in.shape;
  bucket.divide_by = bucket_.divide_by;
  for (std::size_t node = 0; reduces(signature.kind) && node < placement().ranks.size(); ++node) {
    if (node_absent(placement(), bucket_.absent, node)) bucket.absent.push_back(static_cast<int>(node));
  }
  running_.emplace_back(*levels_.inter_node, std::move(bucket));
}

}  // namespace kolo
