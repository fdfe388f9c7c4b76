#include "runtime/coordinator/group_changes.h"

#include <fmt/format.h>

#include <exception>
#include <string>

namespace kolo {

bool GroupChanges::advance(Submission& submission) {
  if (submission.pending.introduced) return false;
  std::string why;
  try {
    if (submission.completion.group) {
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
  submission.completion.group = groups_.make(submission.request.subject->ranks);
  if (!submission.completion.group->member()) return;
  submission.pending.sizes = groups_.find(submission.completion.group->key())->executor.introduction();
}

void GroupChanges::introduce(const Submission& submission) {
  const GroupInfo& group = *submission.completion.group;
  if (!group.member()) return;
  std::vector<Introduction> members;
  for (const int rank : group.ranks) members.push_back(submission.pending.of_ranks.at(static_cast<std::size_t>(rank)));
  groups_.find(group.key())->executor.introduce(members);
}

void GroupChanges::unmake(Submission& submission) {
  if (submission.completion.group) remove(submission.completion.group->id);
  submission.completion.group.reset();
}

}  // namespace kolo
