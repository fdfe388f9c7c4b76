#pragma once

#include <optional>
#include <vector>

#include "runtime/control/wire.h"
#include "runtime/coordinator/groups.h"
#include "runtime/coordinator/losses.h"
#include "runtime/coordinator/program_groups.h"

namespace kolo {

/// How groups come and go on one rank. A group's state is made when this rank's program, or another member, first
/// speaks of it, and the neighbours in its tree are told. It is opened before its first operation, by all members,
/// whatever their programs do: each makes its backends and votes, with what the others must know of them; each
/// introduces the others' to its own and votes again; then it is open. It goes when the programs of all members have
/// removed it; a pair stays.
class GroupChanges {
 public:
  GroupChanges(Groups& groups, ProgramGroups& program, Losses& losses, int rank)
      : groups_(groups), program_(program), losses_(losses), rank_(rank) {}

  /// The state of a group that the program names; null if it has not made that, or has removed it.
  GroupState* named(const std::shared_ptr<const GroupInfo>& group);
  /// Whether the program has the group.
  bool has(const GroupInfo& group) const { return group.is_world() || program_.has(group); }

  /// Another member says what a group is, and maybe that it opens: then it is to be opened here, too. The group, or
  /// null if there is nothing to be done.
  GroupState* heard(GroupKey key, int from, Reader& reader);
  /// Says that to a neighbour.
  static void describe(const GroupState& group, Writer& to);

  /// Begins to open a group, unless that has begun.
  void open(GroupState& group);
  /// The members have voted on opening. Returns whether a step was taken, and they vote again; else it is open.
  bool advance(GroupState& group);
  /// Something of this rank has failed, nobody knows in which group: so do those that it makes from now on.
  void fail_all(const Failure& failure) { failed_ = failure; }
  /// The world's ranks know that devices are shared: what has waited for that votes.
  void devices_are_shared();
  /// The world has failed: its ranks may be gone, and not everybody has met them. What is not open is not opened.
  void end_with_world();

  /// The members have agreed to remove it, or this one has nobody to agree with.
  void remove(const GroupInfo& group) {
    program_.remove(group);
    removed_.push_back(group.id);
  }
  /// At the end of a cycle, when nothing looks at groups any more: lets go of those that were removed and in which
  /// nothing runs. What another thread has submitted to them meanwhile is ended by `end`. Returns whether one with a
  /// backend of devices is gone.
  template <class End>
  bool remove_now(End&& end) {
    bool any = false;
    std::erase_if(removed_, [&](GroupId id) {
      GroupState* const group = groups_.find({GroupKind::agreed, id});
      if (!group) return true;
      if (group->executor.busy()) return false;
      auto left = group->negotiator.take_everything();
      for (auto& item : std::exchange(group->held, {})) {
        if (item.what == PendingQueue::What::submit) left.push_back(std::move(item.submission));
      }
      for (const SubmissionPtr& submission : left) end(*group, submission);
      any |= group->executor.has_devices();
      groups_.remove(id);
      return true;
    });
    return any;
  }

 private:
  GroupState& make(std::shared_ptr<const GroupInfo> info);
  std::optional<Failure> failure_of(const GroupInfo& group) const;
  template <class Call>
  void try_to(GroupState& group, Call&& call);

  Groups& groups_;
  ProgramGroups& program_;
  Losses& losses_;
  int rank_;
  std::vector<GroupId> removed_;
  std::vector<GroupKey> wait_for_world_;  // to open, since they have devices
  std::optional<Failure> failed_;
};

}  // namespace kolo
