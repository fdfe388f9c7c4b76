#include "ops/nccl/plan.h"

#include <algorithm>

namespace kolo {
namespace {

constexpr std::int64_t alignment = region_alignment;
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

std::int64_t agreed_bytes(const Signature& signature, const BucketTensor& tensor, int ranks) {
  const std::int64_t elements = flat_length(signature.kind, tensor, ranks) * (has_blocks(signature.kind) ? ranks : 1);
  return elements * static_cast<std::int64_t>(size_of(signature.dtype));
}

NcclPlanner::NcclPlanner(const Bucket& bucket, int ranks, int rank, const NcclMethod& method,
                         const NcclStaging& staging, std::int64_t direct_bytes)
    : bucket_(bucket),
      ranks_(ranks),
      rank_(rank),
      method_(method),
      staging_(staging),
      direct_bytes_(direct_bytes),
      counts_(!std::ranges::binary_search(bucket.absent, rank)) {}

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
    const bool alone = ranks_ == 1 || is_large(tensor) || aligned(more) > staging_.bytes;
    if (alone || aligned(bytes + more) > staging_.bytes) end_run(i);
    bytes += more;
    if (alone) end_run(i + 1);
  }
  end_run(bucket_.tensors.size());
  return std::move(rounds_);
}

/// Tensors [begin, end) in one call. What is not in one segment on a side goes through staging on that side.
void NcclPlanner::add_run(std::size_t begin, std::size_t end) {
  std::int64_t count = 0;
  std::size_t first = end;
  for (std::size_t i = begin; i < end; ++i) {
    const std::int64_t elements = bucket_.tensors[i].in.elements();
    if (elements > 0 && first == end) first = i;
    count += elements;
  }
  if (count == 0) return;
  const bool reads = kind() == OpKind::broadcast ? is_root() : uses(traits(kind()).reads, is_root());
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
  round.calls.push_back(call_of_whole(in, out, count));
}

NcclCall NcclPlanner::call_of_whole(const std::byte* in, std::byte* out, std::int64_t count) const {
  using enum NcclCall::Kind;
  const int root = bucket_.signature.root;
  if (kind() == OpKind::send_recv) return carry(is_root() ? send : receive, in, out, count * size(), 1 - rank_);
  if (kind() == OpKind::broadcast) return carry(broadcast, in, out, count * size(), root);
  return call(kind() == OpKind::reduce ? reduce : all_reduce, in, out, count, root);
}

/// As many elements at a time as staging holds, converted, or just copied, on their way in and out.
void NcclPlanner::convert_pieces() {
  const std::int64_t largest = staging_.bytes / wire_size();
  const std::int64_t all = bucket_.elements();
  BucketPosition position;
  for (std::int64_t done = 0; done < all; done += largest) {
    const std::int64_t count = std::min(largest, all - done);
    NcclRound& round = rounds_.emplace_back();
    std::byte* next = staging_.data;
    position = for_each_segment(bucket_, ranks_, position, count, [&](const Segment& segment) {
      const BucketTensor& tensor = bucket_.tensors[segment.tensor];
      if (kind() == OpKind::broadcast ? is_root() : counts())
        round.pack.push_back({address(tensor.in, segment.offset), next, segment.count});
      if (writes()) round.unpack.push_back({next, address(tensor.out, segment.offset), segment.count});
      next += segment.count * wire_size();
    });
    if (!counts() && reduces(kind()))
      round.clear.emplace_back(staging_.data, static_cast<std::size_t>(count * wire_size()));
    round.calls.push_back(call_of_whole(staging_.data, staging_.data, count));
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
    position = for_each_segment(bucket_, ranks_, position, count, [&](const Segment& segment) {
      const BucketTensor& tensor = bucket_.tensors[segment.tensor];
      if (counts()) round.pack.push_back({address(tensor.in, segment.offset), mine + place, segment.count});
      if (writes()) round.unpack.push_back({result + place, address(tensor.out, segment.offset), segment.count});
      place += segment.count * size();
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
  what.divide_by = bucket_.divide_by;
  for (int rank : bucket_.absent) what.absent[rank / 64] |= std::uint64_t{1} << (rank % 64);
  round.combination = what;
}

// Where ranks have blocks: large tensors by NCCL's own calls where they are, or in groups of calls for each rank; small
// ones in staging, with a region for each rank.

std::vector<NcclRound> NcclPlanner::blocks() {
  std::vector<std::size_t> packed;
  for (std::size_t i = 0; i < bucket_.tensors.size(); ++i) {
    const BucketTensor& tensor = bucket_.tensors[i];
    if (flat_length(kind(), tensor, ranks_) == 0) continue;
    if (method_.way == NcclWay::direct && is_large(tensor))
      direct_blocks(tensor);
    else
      packed.push_back(i);
  }
  pack_blocks(packed);
  return std::move(rounds_);
}

void NcclPlanner::direct_blocks(const BucketTensor& tensor) {
  switch (kind()) {
    case OpKind::reduce_scatter: return direct_reduce_scatter(tensor);
    case OpKind::all_gather: return direct_all_gather(tensor);
    case OpKind::all_to_all: return direct_all_to_all(tensor);
    default: return direct_exchange(tensor);
  }
}

void NcclPlanner::direct_reduce_scatter(const BucketTensor& tensor) {
  NcclRound& round = first_round();
  if (!counts()) round.clear.emplace_back(address(tensor.in, 0), tensor.in.bytes());
  if (tensor.in.shape[0] % ranks_ == 0) {
    const std::int64_t count = tensor.in.elements() / ranks_;
    round.calls.push_back(call(NcclCall::Kind::reduce_scatter, address(tensor.in, 0), address(tensor.out, 0), count));
    return;
  }
  for (int rank = 0; rank < ranks_; ++rank) {
    const ElementRange block = in_block_for(tensor, rank);
    if (block.count() == 0) continue;
    std::byte* const out = rank == rank_ ? address(tensor.out, 0) : nullptr;
    round.calls.push_back(call(NcclCall::Kind::reduce, address(tensor.in, block.begin), out, block.count(), rank));
  }
}

void NcclPlanner::direct_all_gather(const BucketTensor& tensor) {
  NcclRound& round = first_round();
  if (!tensor.rows) {
    const std::int64_t bytes = tensor.in.elements() * size();
    round.calls.push_back(carry(NcclCall::Kind::all_gather, address(tensor.in, 0), address(tensor.out, 0), bytes));
    return;
  }
  for (int rank = 0; rank < ranks_; ++rank) {
    const ElementRange block = out_block_from(tensor, rank);
    if (block.count() == 0) continue;
    std::byte* const out = address(tensor.out, block.begin);
    const std::byte* const in = rank == rank_ ? address(tensor.in, 0) : out;
    round.calls.push_back(carry(NcclCall::Kind::broadcast, in, out, block.count() * size(), rank));
  }
}

/// gather and scatter.
void NcclPlanner::direct_exchange(const BucketTensor& tensor) {
  NcclRound& round = first_round();
  const int root = bucket_.signature.root;
  const bool gathers = kind() == OpKind::gather;
  if (!is_root()) {
    const std::int64_t bytes = (gathers ? in_block_for(tensor, root) : out_block_from(tensor, root)).count() * size();
    if (bytes == 0) return;
    if (gathers)
      round.calls.push_back(carry(NcclCall::Kind::send, address(tensor.in, 0), nullptr, bytes, root));
    else
      round.calls.push_back(carry(NcclCall::Kind::receive, nullptr, address(tensor.out, 0), bytes, root));
    return;
  }
  for (int rank = 0; rank < ranks_; ++rank) {
    const ElementRange block = gathers ? out_block_from(tensor, rank) : in_block_for(tensor, rank);
    if (block.count() == 0) continue;
    std::byte* const place = address(gathers ? tensor.out : tensor.in, block.begin);
    if (rank == rank_ && gathers)
      round.unpack.push_back({address(tensor.in, 0), place, block.count()});
    else if (rank == rank_)
      round.unpack.push_back({place, address(tensor.out, 0), block.count()});
    else if (gathers)
      round.calls.push_back(carry(NcclCall::Kind::receive, nullptr, place, block.count() * size(), rank));
    else
      round.calls.push_back(carry(NcclCall::Kind::send, place, nullptr, block.count() * size(), rank));
  }
}

/// In segments of every block, as long as fit into staging, where a rank that is in place copies its input first, round
/// by round. Whether a rank is in place only it knows: one that is not sends the same segments, all in one round.
void NcclPlanner::direct_all_to_all(const BucketTensor& tensor) {
  const std::int64_t longest = flat_length(kind(), tensor, ranks_);
  const std::int64_t largest = std::max<std::int64_t>(staging_.bytes / ranks_ / size(), 1);
  const bool in_place = tensor.in.data == tensor.out.data;
  for (std::int64_t offset = 0; offset < longest; offset += largest) {
    if (in_place || rounds_.empty()) rounds_.emplace_back();
    NcclRound& round = rounds_.back();
    const auto part = [&](const ElementRange& block) {
      return std::clamp<std::int64_t>(block.count() - offset, 0, largest);
    };
    for (int rank = 0; rank < ranks_; ++rank) {
      const ElementRange sent = in_block_for(tensor, rank), received = out_block_from(tensor, rank);
      std::byte* const in = address(tensor.in, sent.begin + offset);
      std::byte* const out = address(tensor.out, received.begin + offset);
      if (rank == rank_) {
        if (part(sent) > 0) round.unpack.push_back({in, out, part(sent)});
        continue;
      }
      std::byte* const staging = staging_.data + rank * largest * size();
      if (in_place && part(sent) > 0) round.pack.push_back({in, staging, part(sent)});
      if (part(sent) > 0)
        round.calls.push_back(carry(NcclCall::Kind::send, in_place ? staging : in, nullptr, part(sent) * size(), rank));
      if (part(received) > 0)
        round.calls.push_back(carry(NcclCall::Kind::receive, nullptr, out, part(received) * size(), rank));
    }
  }
}

/// Segments of these tensors' blocks, as many at a time as fit.
void NcclPlanner::pack_blocks(const std::vector<std::size_t>& tensors) {
  const std::int64_t largest =
      staging_.bytes / regions_of(kind(), method_.way, ranks_) / alignment * alignment / wire_size();
  std::vector<Segment> segments;
  std::int64_t count = 0;
  const auto end_round = [&] {
    if (count > 0) pack_round(segments, count);
    segments.clear();
    count = 0;
  };
  for (std::size_t index : tensors) {
    const std::int64_t length = flat_length(kind(), bucket_.tensors[index], ranks_);
    for (std::int64_t offset = 0; offset < length;) {
      const std::int64_t taken = std::min(length - offset, largest - count);
      segments.push_back({index, offset, taken});
      count += taken;
      offset += taken;
      if (count == largest) end_round();
    }
  }
  end_round();
}

void NcclPlanner::pack_round(const std::vector<Segment>& segments, std::int64_t count) {
  NcclRound& round = rounds_.emplace_back();
  const std::int64_t bytes = aligned(count * wire_size());
  std::byte* const sent = staging_.data;
  const bool exchanges =
      kind() == OpKind::all_to_all || (kind() == OpKind::reduce_scatter && method_.way == NcclWay::gathered);
  std::byte* const received = exchanges ? staging_.data + ranks_ * bytes : staging_.data;
  std::byte* const combined = staging_.data + 2 * bytes * ranks_;
  const bool reads = kind() != OpKind::scatter || is_root();
  const bool one_in = kind() == OpKind::all_gather || kind() == OpKind::gather;  // the same for all
  const bool one_out = kind() == OpKind::reduce_scatter || kind() == OpKind::scatter;
  std::int64_t place = 0;
  for (const Segment& segment : segments) {
    const BucketTensor& tensor = bucket_.tensors[segment.tensor];
    for (int rank = 0; rank < ranks_; ++rank) {
      const auto part = [&](const ElementRange& block) {
        return std::clamp<std::int64_t>(block.count() - segment.offset, 0, segment.count);
      };
      const ElementRange in = in_block_for(tensor, rank), out = out_block_from(tensor, rank);
      if (reads && (counts() || !reduces(kind())) && part(in) > 0 && (!one_in || rank == rank_)) {
        std::byte* const region = exchanges && rank == rank_ ? received : sent;  // a rank sends itself nothing
        round.pack.push_back({address(tensor.in, in.begin + segment.offset), region + rank * bytes + place, part(in)});
      }
      if (writes() && part(out) > 0 && (!one_out || rank == rank_)) {
        const std::byte* const region =
            kind() == OpKind::reduce_scatter && exchanges ? combined : received + rank * bytes;
        round.unpack.push_back({region + place, address(tensor.out, out.begin + segment.offset), part(out)});
      }
    }
    place += segment.count * wire_size();
  }
  if (!counts() && kind() == OpKind::reduce_scatter && !exchanges)
    round.clear.emplace_back(sent, static_cast<std::size_t>(ranks_ * bytes));
  exchange_regions(round, bytes, sent, received);
  if (kind() == OpKind::reduce_scatter && exchanges) combine_regions(round, received, bytes, count, combined);
}

void NcclPlanner::exchange_regions(NcclRound& round, std::int64_t bytes, std::byte* sent, std::byte* received) {
  const int root = bucket_.signature.root;
  std::byte* const mine = sent + rank_ * bytes;
  if (kind() == OpKind::all_gather) {
    round.calls.push_back(carry(NcclCall::Kind::all_gather, mine, sent, bytes));
    return;
  }
  if (kind() == OpKind::reduce_scatter && method_.way != NcclWay::gathered) {
    round.calls.push_back(call(NcclCall::Kind::reduce_scatter, sent, mine, bytes / wire_size()));
    return;
  }
  const auto send = [&](int to, const std::byte* region) {
    round.calls.push_back(carry(NcclCall::Kind::send, region, nullptr, bytes, to));
  };
  const auto receive = [&](int from, std::byte* region) {
    round.calls.push_back(carry(NcclCall::Kind::receive, nullptr, region, bytes, from));
  };
  for (int rank = 0; rank < ranks_; ++rank) {
    if (rank == rank_) continue;
    const bool with_root = rank == root || is_root();
    switch (kind()) {
      case OpKind::gather:
        if (with_root && is_root())
          receive(rank, sent + rank * bytes);
        else if (with_root)
          send(rank, mine);
        break;
      case OpKind::scatter:
        if (with_root && is_root())
          send(rank, sent + rank * bytes);
        else if (with_root)
          receive(rank, mine);
        break;
      default:
        send(rank, sent + rank * bytes);
        receive(rank, received + rank * bytes);
        break;
    }
  }
}

NcclPlan plan_nccl(const Bucket& bucket, int ranks, int rank, const NcclMethod& method, const NcclStaging& staging,
                   std::int64_t direct_bytes) {
  NcclPlanner planner(bucket, ranks, rank, method, staging, direct_bytes);
  return {method, has_blocks(bucket.signature.kind) ? planner.blocks() : planner.whole_tensors()};
}

}  // namespace kolo
