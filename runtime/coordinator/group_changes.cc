#include "runtime/coordinator/group_changes.h"

#include <fmt/format.h>

#include <exception>
#include <string>

namespace kolo {

std::optional<Failure> GroupChanges::make(Submission& submission) {
  if (submission.completion.group) return std::nullopt;
  std::string why;
  try {
    submission.completion.group = groups_.make(submission.request.subject->ranks);
    return std::nullopt;
  } catch (const std::bad_alloc&) {
    why = "there is not enough memory";
  } catch (const std::exception& error) {
    why = error.what();
  }
  return Failure{ErrorCode::backend, fmt::format("the group could not be made on rank {} ({})", rank_, why)};
}

void GroupChanges::unmake(Submission& submission) {
  if (submission.completion.group) remove(submission.completion.group->id);
  submission.completion.group.reset();
}

}  // namespace kolo
