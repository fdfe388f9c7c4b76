#pragma once

#include <optional>
#include <vector>

#include "runtime/coordinator/groups.h"

namespace kolo {

/// Makes and removes groups, as all ranks of the world have agreed to, at the same place of the world's decisions.
class GroupChanges {
 public:
  GroupChanges(Groups& groups, int rank) : groups_(groups), rank_(rank) {}

  /// Makes the group that the submission asks for, if that has not been tried: it is there when the ranks have agreed
  /// once more. Returns why it cannot be made on this rank. May wait for the group's other ranks.
  std::optional<Failure> make(Submission& submission);
  /// It could not be made on some rank.
  void unmake(Submission& submission);

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
  Groups& groups_;
  int rank_;
  std::vector<GroupId> removed_;
};

}  // namespace kolo
