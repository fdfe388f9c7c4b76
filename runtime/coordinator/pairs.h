#pragma once

#include <optional>
#include <string>

#include "runtime/coordinator/completions.h"
#include "runtime/coordinator/groups.h"

namespace kolo {

/// Sends and receives: each pair of ranks, in each direction, is a group of its own that negotiates one operation of a
/// name at a time. What is sent is neither held back nor fused: its turn may depend on it.
class Pairs {
 public:
  Pairs(Groups& groups, Completions& completions, int rank) : groups_(groups), completions_(completions), rank_(rank) {}

  /// The pair's state, made if it is not there yet; null once the world has failed.
  GroupState* state(GroupId id);
  /// `held`: it has waited for the pair to be opened.
  void submit(GroupState& pair, const SubmissionPtr& submission, bool held);
  /// Completes what is new, and would wait in vain for its other rank. Returns whether it is.
  bool refuse(const SubmissionPtr& submission, bool is_new = true);
  void withdraw(GroupState& pair, const SubmissionPtr& submission);
  /// An operation of this name is agreed, or gone: the next one, if any, is negotiated. Returns whether there is one.
  bool admit_next(GroupState& pair, const std::string& name);

  /// Where ranks have left since the last call, the pairs that have one are asked.
  void look();

  /// The world has failed, and with it all pairs, which are made of the world's backends.
  void end_with_world();

  /// A rank has joined this group, or it has failed: what waits in a pair for that rank, or all of it, is withdrawn.
  /// Returns whether anything is.
  bool withdraw_refused(const GroupState& parent);
  /// Whether something that the program has submitted to this group waits in a pair.
  bool wait_for(const GroupInfo& parent) const;

 private:
  std::optional<Failure> refusal_of(const Request& request, bool is_new);
  void ask_if_left(GroupState& pair);

  Groups& groups_;
  Completions& completions_;
  int rank_;
  int left_ = 0;  // ranks, at the last look
};

}  // namespace kolo
