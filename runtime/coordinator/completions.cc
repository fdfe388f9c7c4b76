#include "runtime/coordinator/completions.h"

#include <utility>

namespace kolo {

void Completions::publish() {
  completing_.clear();
  for (std::size_t i = 0; i < finished_.size(); ++i) {
    if (const SubmissionPtr outer = finished_[i].submission->request.stands_for)
      finished_.push_back({outer, finished_[i].failure});
    auto& [submission, failure] = finished_[i];
    if (submission->completion.done) continue;
    submission->completion.failure = std::move(failure);
    submission->pending.reserved.clear();
    completing_.push_back(submission.get());
  }
  if (!completing_.empty()) {
    on_complete_(completing_.back()->request.name());
    queue_.retire(completing_);  // first: the next step may submit the same name as soon as the handle is done
  }
  std::erase_if(completing_, [](Submission* submission) {
    Completion& completion = submission->completion;
    const bool slept_on = completion.done.set_and_wake_later();
    if (submission->request.signature.device != DeviceKind::cpu)
      completion.launched.set();  // last: without results it failed
    return !slept_on;
  });
  for (Submission* submission : completing_) {
    submission->completion.done.wake();
    queue_.call_listeners(*submission);
  }
  finished_.clear();  // they may end here
}

}  // namespace kolo
