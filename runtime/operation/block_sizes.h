#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include <kolo/backend.h>
#include <kolo/error.h>
#include <kolo/group.h>

#include "runtime/operation/submission.h"

namespace kolo {

/// Sizes of blocks that differ from rank to rank (operations that has_rows()): what a rank announces, and what
/// follows from what all have announced.
///
/// A rank's sizes of one tensor are a list: the rows of its output (or a mark), the row of the output at which its
/// input begins if it works in place, then the rows of its block for all (all_gather, gather) or for each rank of the
/// group (all_to_all). Those of tensors that were submitted together follow each other.
struct SizeMark {
  static constexpr std::int64_t to_be_allocated = -1;  ///< the output is made when its size is agreed
  static constexpr std::int64_t no_output = -2;
  static constexpr std::int64_t apart = -1;  ///< input and output do not overlap
};

/// This rank's sizes of one tensor. `splits` (all_to_all) empty: equal blocks.
std::vector<std::int64_t> own_sizes(OpKind kind, const BucketTensor& tensor, std::span<const std::int64_t> splits,
                                    bool allocates, const GroupInfo& group, int root);

/// How many numbers a rank announces for one tensor.
constexpr std::size_t sizes_per_tensor(OpKind kind, int ranks) {
  return 2 + static_cast<std::size_t>(traits(kind).in == Rows::blocks ? ranks : 1);
}

/// All ranks' sizes of one submission, by rank of the group, and which ranks do not take part (ascending).
struct AgreedSizes {
  OpKind kind;
  std::span<const std::vector<std::int64_t>> of_rank;
  std::span<const int> absent;

  int ranks() const { return static_cast<int>(of_rank.size()); }
  std::size_t tensors() const;
  bool is_absent(int rank) const;
  /// Rows that `from` has for `to`.
  std::int64_t rows(std::size_t tensor, int from, int to) const;
  /// Rows that `rank` receives.
  std::int64_t rows_received(std::size_t tensor, int rank) const;
  std::int64_t rows_of_output(std::size_t tensor, int rank) const;
  std::int64_t row_in_output(std::size_t tensor, int rank) const;
};

/// What a backend gets (BucketTensor::rows); null if all blocks are equal.
std::shared_ptr<const BlockRows> block_rows(const AgreedSizes& sizes, std::size_t tensor);

/// What follows from the sizes of all ranks, for one of them: worked out once for as many operations as have them.
struct AgreedRows {
  /// `rank`: this rank's in the group.
  AgreedRows(OpKind kind, std::vector<std::vector<std::int64_t>> of_rank, std::vector<int> absent, int rank);

  AgreedSizes sizes() const { return {kind, of_rank, absent}; }

  OpKind kind;
  std::vector<std::vector<std::int64_t>> of_rank;
  std::vector<int> absent;
  std::vector<AgreedTensor> tensors;  ///< without outputs
  /// Whether some rank waits for the sizes to make its output: then the ranks vote once more when all have.
  bool to_be_allocated = false;
};

/// Gives a submission the rows that the ranks have agreed on, and shows them to its program if it wants to see them.
void set_agreed_rows(Submission& submission, const AgreedRows& rows);

/// Makes the outputs of a submission whose rows are agreed, by its program's function, and puts their rows into its
/// sizes. Returns how that failed, if it did; `rank` is this rank, for the text.
std::optional<Failure> allocate_outputs(Submission& submission, int rank);

/// Why these sizes do not go together, without the operation's name; nothing if they do. An output must have exactly
/// the rows that its rank receives; more are allowed while ranks have joined, since the program cannot know how many
/// have.
std::optional<Failure> check_sizes(const AgreedSizes& sizes, const GroupInfo& group);

}  // namespace kolo
