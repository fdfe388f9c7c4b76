#include "ops/nccl/plan.h"

#include <algorithm>

namespace kolo {
namespace {

/// Regions of staging begin at multiples of this, so that vectors are whole.
constexpr std::int64_t alignment = 16;
constexpr std::int64_t aligned(std::int64_t bytes) {
  return (bytes + alignment - 1) / alignment * alignment;
}

/// Whether these tensors lie one after the other.
bool neighbours(const Bucket& bucket, std::size_t begin, std::size_t end, Tensor BucketTensor::*side) {
  const std::byte* next = nullptr;
  for (std::size_t i = begin; i < end; ++i) {
    const Tensor& tensor = bucket.tensors[i].*side;
    const std::int64_t elements = bucket.tensors[i].in.elements();
    if (elements == 0) continue;
    if (next && address(tensor, 0) != next) return false;
    next = address(tensor, elements);
  }
  return true;
}

}  // namespace

NcclPlanner::NcclPlanner(const Bucket& bucket, int ranks, int rank, const NcclMethod& method,
                         const NcclStaging& staging, std::int64_t direct_bytes)
    : bucket_(bucket),
      ranks_(ranks),
      rank_(rank),
      method_(method),
      staging_(staging),
      direct_bytes_(direct_bytes),
      counts_(!std::ranges::binary_search(bucket.absent, rank)) {}

bool NcclPlanner::is_large(const BucketTensor& tensor) const {
  std::int64_t elements = flat_length(kind(), tensor, ranks_);
  if (has_blocks(kind())) elements *= ranks_;
  return elements * size() >= direct_bytes_;
}

NcclRound& NcclPlanner::first_round() {
  if (rounds_.empty()) rounds_.emplace_back();
  return rounds_.front();
}

std::vector<NcclRound> NcclPlanner::whole_tensors() {
  if (method_.way == NcclWay::widened) convert_pieces();
  if (method_.way == NcclWay::gathered) gather_pieces();
  if (method_.way != NcclWay::direct) return std::move(rounds_);
  std::size_t begin = 0;
  std::int64_t bytes = 0;
  const auto end_run = [&](std::size_t end) {
    add_run(begin, end);
    begin = end;
    bytes = 0;
  };
  for (std::size_t i = 0; i < bucket_.tensors.size(); ++i) {
    const BucketTensor& tensor = bucket_.tensors[i];
    const auto more = static_cast<std::int64_t>(tensor.in.bytes());
    const bool alone = is_large(tensor) || aligned(more) > staging_.bytes;
    if (alone || aligned(bytes + more) > staging_.bytes) end_run(i);
    bytes += more;
    if (alone) end_run(i + 1);
  }
  end_run(bucket_.tensors.size());
  return std::move(rounds_);
}

/// Tensors [begin, end) in one call. What is not in one piece on a side goes through staging on that side.
void NcclPlanner::add_run(std::size_t begin, std::size_t end) {
  std::int64_t count = 0;
  std::size_t first = end;
  for (std::size_t i = begin; i < end; ++i) {
    const std::int64_t elements = bucket_.tensors[i].in.elements();
    if (elements > 0 && first == end) first = i;
    count += elements;
  }
  if (count == 0) return;
  const bool reads = kind() != OpKind::broadcast || is_root();
  const std::int64_t bytes = end - begin > 1 ? aligned(count * size()) : 0;  // on every rank, wherever its tensors are
  if (rounds_.empty() || used_ + bytes > staging_.bytes) {
    rounds_.emplace_back();
    used_ = 0;
  }
  NcclRound& round = rounds_.back();
  std::byte* const staging = staging_.data + used_;
  used_ += bytes;
  const bool packs = reads && !neighbours(bucket_, begin, end, &BucketTensor::in);
  const bool unpacks = writes() && !neighbours(bucket_, begin, end, &BucketTensor::out);
  std::byte* const out = unpacks ? staging : writes() ? address(bucket_.tensors[first].out, 0) : nullptr;
  std::byte* const in = packs ? staging : reads ? address(bucket_.tensors[first].in, 0) : out;
  std::int64_t place = 0;
  for (std::size_t i = begin; i < end; ++i) {
    const auto& [from, to, rows] = bucket_.tensors[i];
    const std::int64_t elements = from.elements();
    if (elements == 0) continue;
    if (packs && counts()) round.pack.push_back({address(from, 0), staging + place, elements});
    if (unpacks) round.unpack.push_back({staging + place, address(to, 0), elements});
    place += elements * size();
  }
  if (!counts() && reduces(kind())) round.clear.emplace_back(in, static_cast<std::size_t>(count * size()));
  const auto what = kind() == OpKind::all_reduce ? NcclCall::Kind::all_reduce
                    : kind() == OpKind::reduce   ? NcclCall::Kind::reduce
                                                 : NcclCall::Kind::broadcast;
  if (kind() == OpKind::broadcast)
    round.calls.push_back(carry(what, in, out, count * size(), bucket_.signature.root));
  else
    round.calls.push_back(call(what, in, out, count, bucket_.signature.root));
}

/// As many elements as staging holds at a time, converted on their way in and out.
void NcclPlanner::convert_pieces() {
  const std::int64_t largest = staging_.bytes / wire_size();
  const std::int64_t all = bucket_.elements();
  BucketPosition position;
  for (std::int64_t done = 0; done < all; done += largest) {
    const std::int64_t count = std::min(largest, all - done);
    NcclRound& round = rounds_.emplace_back();
    std::byte* next = staging_.data;
    position = for_each_piece(bucket_, ranks_, position, count, [&](const Piece& piece) {
      const BucketTensor& tensor = bucket_.tensors[piece.tensor];
      if (counts()) round.pack.push_back({address(tensor.in, piece.offset), next, piece.count});
      if (writes()) round.unpack.push_back({next, address(tensor.out, piece.offset), piece.count});
      next += piece.count * wire_size();
    });
    if (!counts()) round.clear.emplace_back(staging_.data, static_cast<std::size_t>(count * wire_size()));
    const auto what = kind() == OpKind::reduce ? NcclCall::Kind::reduce : NcclCall::Kind::all_reduce;
    round.calls.push_back(call(what, staging_.data, staging_.data, count, bucket_.signature.root));
  }
}

/// A region of staging for each rank, and one for the result.
void NcclPlanner::gather_pieces() {
  const std::int64_t largest = staging_.bytes / (ranks_ + 1) / alignment * alignment / size();
  const std::int64_t all = bucket_.elements();
  BucketPosition position;
  for (std::int64_t done = 0; done < all; done += largest) {
    const std::int64_t count = std::min(largest, all - done);
    const std::int64_t bytes = aligned(count * size());
    NcclRound& round = rounds_.emplace_back();
    std::byte* const mine = staging_.data + rank_ * bytes;
    std::byte* const result = staging_.data + ranks_ * bytes;
    std::int64_t place = 0;
    position = for_each_piece(bucket_, ranks_, position, count, [&](const Piece& piece) {
      const BucketTensor& tensor = bucket_.tensors[piece.tensor];
      if (counts()) round.pack.push_back({address(tensor.in, piece.offset), mine + place, piece.count});
      if (writes()) round.unpack.push_back({result + place, address(tensor.out, piece.offset), piece.count});
      place += piece.count * size();
    });
    round.calls.push_back(carry(NcclCall::Kind::all_gather, mine, staging_.data, bytes));
    if (writes()) combine_regions(round, staging_.data, bytes, count, result);
  }
}

void NcclPlanner::combine_regions(NcclRound& round, std::byte* from, std::int64_t stride, std::int64_t count,
                                  std::byte* to) {
  const Signature& signature = bucket_.signature;
  Combination what{from, stride, to, count, signature.dtype, signature.op, signature.prescale, signature.postscale};
  what.ranks = ranks_;
  what.sources = ranks_ - static_cast<int>(bucket_.absent.size());
  what.divide_by = bucket_.divide_by != 0 ? bucket_.divide_by : signature.divide_by_group ? ranks_ : what.sources;
  for (int rank : bucket_.absent) what.absent[rank / 64] |= std::uint64_t{1} << (rank % 64);
  round.combination = what;
}

NcclPlan plan_nccl(const Bucket& bucket, int ranks, int rank, const NcclMethod& method, const NcclStaging& staging,
                   std::int64_t direct_bytes) {
  NcclPlanner planner(bucket, ranks, rank, method, staging, direct_bytes);
  return {method, has_blocks(bucket.signature.kind) ? planner.blocks() : planner.whole_tensors()};
}

}  // namespace kolo
