#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <kolo/backend.h>

#include "runtime/control/channel.h"
#include "runtime/operation/submission.h"

namespace kolo {

/// What the members of a group tell each other about an operation that they have not negotiated, before it starts,
/// where its backend does not: that it is the same one, and the sizes of blocks that may differ. A barrier is nothing
/// else.
class Rendezvous {
 public:
  /// Whether an operation needs one; `runner` will run it, or is null.
  static bool needed(const Submission& submission, const Backend* runner);

  /// What it does on the group's backend for small host tensors.
  static Signature gathering() { return {.kind = OpKind::all_gather, .dtype = DType::i64}; }
  /// `host`: the group's backend for small host tensors. As with start(), the same order on all ranks.
  Rendezvous(Backend& host, SubmissionPtr submission, std::uint64_t token);

  /// Advances without waiting. True once all ranks have met: then the submission has its sizes and outputs, or there is
  /// a failure(), the same on all ranks. Throws Error{mismatch}, or what fails on this rank alone.
  bool step();
  const std::optional<Failure>& failure() const { return failure_; }

  // As of Operation.
  bool needs_polling() const { return operation_ && operation_->needs_polling(); }
  bool moved() const { return operation_ && operation_->moved(); }

 private:
  void exchange(std::vector<std::int64_t> mine);
  void compare() const;
  void take_sizes();

  Backend& host_;
  SubmissionPtr submission_;
  const std::uint64_t token_;
  std::vector<std::int64_t> mine_, all_;
  Bucket bucket_;
  std::unique_ptr<Operation> operation_;
  bool compared_;
  std::optional<Failure> failure_;
};

/// By rank, the node, where no backend of the world serves what ranks meet by; else empty.
std::vector<int> nodes_apart(const Topology& topology, const BackendList& backends);

}  // namespace kolo
