#pragma once

#include <optional>
#include <vector>

#include "runtime/coordinator/groups.h"

namespace kolo {

/// Makes and removes groups, as all ranks of the world have agreed to, at the same place of the world's decisions.
class GroupChanges {
 public:
  GroupChanges(Groups& groups, int rank) : groups_(groups), rank_(rank) {}

  /// The ranks have agreed on the groups that the submission asks for, and vote once more after each step: first every
  /// member makes its group and says what the others must know of its backends, then it hears the others. Returns
  /// whether a step was taken, of which the submission's sizes and objection say how it went: if not, all are there.
  bool advance(Submission& submission);
  /// They were not made, for the ranks agreed so: they are removed. Or the world has ended here before they could: then
  /// other members may have them, and learn that they have failed.
  void unmake(Submission& submission, const Failure& failure);

  void remove(GroupId id) { removed_.push_back(id); }
  /// At the end of a cycle, when nothing looks at groups any more: lets go of those that were removed and in which
  /// nothing runs. What another thread has submitted to them meanwhile fails, by `fail`. Returns whether one with a
  /// backend of devices is gone.
  template <class Fail>
  bool remove_now(Fail&& fail) {
    bool any = false;
    std::erase_if(removed_, [&](GroupId id) {
      GroupState* const group = groups_.find({GroupKind::agreed, id});
      if (!group) return true;  // this rank is no member
      if (group->executor.busy()) return false;
      const Failure failure{ErrorCode::closed, "group " + group->info->name + " was removed; make it again"};
      for (const SubmissionPtr& submission : group->negotiator.take_everything()) fail(submission, failure);
      any |= group->executor.has_devices();
      groups_.remove(id);
      return true;
    });
    return any;
  }

 private:
  void make(Submission& submission);
  void introduce(const Submission& submission);

  Groups& groups_;
  int rank_;
  std::vector<GroupId> removed_;
};

}  // namespace kolo
