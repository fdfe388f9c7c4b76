#include "runtime/coordinator/group_changes.h"

#include <fmt/format.h>

#include <exception>
#include <string>
#include <utility>

namespace kolo {

bool GroupChanges::advance(Submission& submission) {
  if (submission.pending.introduced) return false;
  std::string why;
  try {
    if (!submission.completion.groups.empty()) {
      submission.pending.introduced = true;
      introduce(submission);
    } else {
      make(submission);
    }
    return true;
  } catch (const std::bad_alloc&) {
    why = "there is not enough memory";
  } catch (const std::exception& error) {
    why = error.what();
  }
  submission.pending.objection =
      Failure{ErrorCode::backend, fmt::format("the group could not be made on rank {} ({})", rank_, why)};
  return true;
}

void GroupChanges::make(Submission& submission) {
  const auto& lists = submission.request.groups;
  GroupId next = groups_.take_ids(lists.size());  // first: the next group's number is the same on every rank
  for (const std::vector<int>& ranks : lists) {
    const auto& made = submission.completion.groups.emplace_back(groups_.make(next++, ranks));
    if (made->member()) submission.pending.sizes = groups_.find(made->key())->executor.introduction();
  }
}

void GroupChanges::introduce(const Submission& submission) {
  for (const auto& group : submission.completion.groups) {
    if (!group->member()) continue;
    std::vector<Introduction> members;
    for (const int rank : group->ranks)
      members.push_back(submission.pending.of_ranks.at(static_cast<std::size_t>(rank)));
    groups_.find(group->key())->executor.introduce(members);
  }
}

void GroupChanges::unmake(Submission& submission, const Failure& failure) {
  for (const auto& group : std::exchange(submission.completion.groups, {})) {
    GroupState* const made = groups_.world().negotiator.over() ? groups_.find(group->key()) : nullptr;
    made ? made->negotiator.cut_off(failure) : remove(group->id);
  }
}

}  // namespace kolo
