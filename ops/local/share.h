#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include <kolo/backend.h>

#include "ops/bucket.h"
#include "ops/local/board.h"
#include "ops/step_budget.h"

namespace kolo {

/// Where elements of a tensor begin: whose, in its input or output, and at which element.
struct LocalPlace {
  int rank;
  Tensor BucketTensor::*side;
  std::int64_t offset;
};

/// What one rank has at hand when it does its share of an operation: all ranks' tensors, between
/// LocalBoard::all_shown() and leave().
class LocalShare final {
 public:
  LocalShare(LocalBoard& board, std::uint64_t operation, int rank, const Bucket& bucket)
      : sources(static_cast<std::size_t>(board.ranks())),
        destinations(static_cast<std::size_t>(board.ranks())),
        board_(board),
        operation_(operation),
        rank_(rank),
        bucket_(bucket) {
    for (int other = 0; other < board.ranks(); ++other) {
      if (!std::ranges::binary_search(bucket.absent, other)) present_.push_back(other);
    }
  }

  int rank() const { return rank_; }
  int ranks() const { return board_.ranks(); }
  /// This rank's bucket; those of the others differ in memory only.
  const Bucket& bucket() const { return bucket_; }
  const Signature& signature() const { return bucket_.signature; }
  /// A tensor of any rank; only within in_chunks(), because those of the others may die.
  const BucketTensor& tensor(int rank, std::size_t index) const {
    return board_.shown(operation_, rank).tensors[index];
  }

  /// What rank `from` has for rank `to` of tensor `index`: in the input of the one, and in the output of the other.
  ElementRange in_block(std::size_t index, int from, int to) const {
    return kolo::in_block(signature().kind, bucket_.tensors[index], ranks(), from, to);
  }
  ElementRange out_block(std::size_t index, int from, int to) const {
    return kolo::out_block(signature().kind, bucket_.tensors[index], ranks(), to, from);
  }

  /// The ranks whose values are combined, in order.
  const std::vector<int>& present() const { return present_; }

  /// Calls touch(begin, count) for chunks that make up the elements [0, count), but for those that proceed() has had
  /// before, and as long as its budget lasts. Only in there may tensors be touched. Throws Error{aborted}, between two
  /// chunks, once the board is broken.
  template <class Touch>
  void in_chunks(std::int64_t count, Touch touch) {
    for (std::int64_t begin = 0; begin < count; begin += chunk_elements) {
      if (seen_++ < done_) continue;
      if (budget_->spent()) return;
      const std::int64_t length = std::min(chunk_elements, count - begin);
      enter();
      touch(begin, length);
      board_.exit(rank_);
      budget_->spend(length * static_cast<std::int64_t>(size_of(signature().dtype)));
      ++done_;
    }
  }

  /// Does as much of the share as the budget allows: the method goes through all of it each time, and leaves out what
  /// is done. Returns whether all is.
  bool proceed(StepBudget& budget);

  /// Copies `count` elements of tensor `index`, unless they are there already; in chunks.
  void copy(std::size_t index, const LocalPlace& from, const LocalPlace& to, std::int64_t count);

  // One entry per rank, for the arguments of reduce(); kept so that chunks need no allocation.
  std::vector<const void*> sources;
  std::vector<void*> destinations;

 private:
  // Between two chunks a rank looks whether the board is broken: the longest that a peer's destructor has to wait.
  static constexpr std::int64_t chunk_elements = 1 << 16;

  void enter() const;

  LocalBoard& board_;
  std::uint64_t operation_;
  int rank_;
  const Bucket& bucket_;
  std::vector<int> present_;
  std::int64_t done_ = 0, seen_ = 0;  // chunks: ever, and in this turn
  StepBudget* budget_ = nullptr;      // of this turn
};

/// How ranks that are threads do one kind of operation: each rank calls it, when all have shown their buckets, for its
/// share of the work on all ranks' tensors.
///
/// No two ranks may touch the same element unless both only read it, whoever works in place (see BucketTensor).
using LocalMethod = void (*)(LocalShare& share);

/// The method of a kind of operation; null if there is none.
LocalMethod local_method(OpKind kind);

void local_all_reduce(LocalShare& share);
void local_reduce(LocalShare& share);
void local_reduce_scatter(LocalShare& share);
void local_broadcast(LocalShare& share);
void local_all_gather(LocalShare& share);
void local_gather(LocalShare& share);
void local_scatter(LocalShare& share);
void local_all_to_all(LocalShare& share);
void local_send_recv(LocalShare& share);

}  // namespace kolo
