#pragma once

#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include <kolo/backend.h>

#include "ops/bucket.h"
#include "ops/gpu/pack_items.h"
#include "ops/nccl/method.h"

namespace kolo {

/// One call of NCCL.
struct NcclCall {
  enum class Kind { all_reduce, reduce, broadcast, all_gather, reduce_scatter, send, receive };
  Kind kind = Kind::all_reduce;
  const std::byte* in = nullptr;
  std::byte* out = nullptr;
  std::int64_t count = 0;  ///< as NCCL counts: of one rank's block where ranks have blocks
  DType type = DType::u8;
  int peer = 0;  ///< the root, or the other rank
};

/// Put on the stream together: packing, NCCL's calls in one group, combining the values received, unpacking.
struct NcclRound {
  std::vector<std::pair<std::byte*, std::size_t>> clear;  ///< before all else
  std::vector<PackItem> pack;
  std::vector<NcclCall> calls;
  std::optional<Combination> combination;
  std::vector<PackItem> unpack;
};

/// The pack buffer: the same number of bytes on every rank, a multiple of 256.
struct NcclStaging {
  std::byte* data = nullptr;
  std::int64_t bytes = 0;
};

/// Bytes of a tensor as every rank counts them: all blocks are as long as the longest.
std::int64_t agreed_bytes(const Signature& signature, const BucketTensor& tensor, int ranks);

/// How a bucket runs, in rounds one after the other. Which calls, of how many elements, in which order and in which
/// rounds depends only on what is equal on all ranks; the addresses are each rank's own.
struct NcclPlan {
  NcclMethod method;
  std::vector<NcclRound> rounds;
};

/// Plans this rank's part.
///
/// direct_bytes  tensors from this size on (the larger of input and output) are not packed, if NCCL can run them where
/// they are
///
/// Small tensors, between two large ones, travel as one: without being packed on a rank where they are neighbours in
/// memory.
NcclPlan plan_nccl(const Bucket& bucket, int ranks, int rank, const NcclMethod& method, const NcclStaging& staging,
                   std::int64_t direct_bytes);

/// Plans one bucket on one rank.
class NcclPlanner {
 public:
  NcclPlanner(const Bucket& bucket, int ranks, int rank, const NcclMethod& method, const NcclStaging& staging,
              std::int64_t direct_bytes);

  std::vector<NcclRound> whole_tensors();  ///< all_reduce, reduce, broadcast, send_recv
  std::vector<NcclRound> blocks();         ///< where ranks have blocks

 private:
  // Whole tensors.
  void add_run(std::size_t begin, std::size_t end);
  void convert_pieces();
  void gather_pieces();

  // Blocks.
  void direct_blocks(const BucketTensor& tensor);
  void direct_reduce_scatter(const BucketTensor& tensor);
  void direct_all_gather(const BucketTensor& tensor);
  void direct_exchange(const BucketTensor& tensor);
  void direct_all_to_all(const BucketTensor& tensor);
  void pack_blocks(const std::vector<std::size_t>& tensors);
  void pack_round(const std::vector<Segment>& segments, std::int64_t count);
  void exchange_regions(NcclRound& round, std::int64_t bytes, std::byte* sent, std::byte* received);
  void combine_regions(NcclRound& round, std::byte* from, std::int64_t stride, std::int64_t count, std::byte* to);

  OpKind kind() const { return bucket_.signature.kind; }
  bool is_root() const { return bucket_.signature.root == rank_; }
  bool counts() const { return counts_; }
  std::int64_t size() const { return static_cast<std::int64_t>(size_of(bucket_.signature.dtype)); }
  std::int64_t wire_size() const { return static_cast<std::int64_t>(size_of(method_.wire)); }
  bool writes() const { return uses(traits(kind()).writes, is_root()); }
  bool is_large(const BucketTensor& tensor) const {
    return agreed_bytes(bucket_.signature, tensor, ranks_) >= direct_bytes_;
  }
  ElementRange in_block_for(const BucketTensor& tensor, int peer) const {
    return in_block(kind(), tensor, ranks_, rank_, peer);
  }
  ElementRange out_block_from(const BucketTensor& tensor, int peer) const {
    return out_block(kind(), tensor, ranks_, rank_, peer);
  }
  NcclRound& first_round();
  NcclCall call(NcclCall::Kind what, const std::byte* in, std::byte* out, std::int64_t count, int peer = 0) const {
    return {what, in, out, count, method_.wire, peer};
  }
  NcclCall call_of_whole(const std::byte* in, std::byte* out, std::int64_t count) const;
  /// Of bytes.
  static NcclCall carry(NcclCall::Kind what, const std::byte* in, std::byte* out, std::int64_t bytes, int peer = 0) {
    return {what, in, out, bytes, DType::u8, peer};
  }

  const Bucket& bucket_;
  int ranks_;
  int rank_;
  const NcclMethod& method_;
  NcclStaging staging_;
  std::int64_t direct_bytes_;
  bool counts_;  // this rank's values do: it has not joined
  std::vector<NcclRound> rounds_;
  std::int64_t used_ = 0;  // of staging, in the last round
};

}  // namespace kolo
