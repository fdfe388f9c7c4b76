#include "runtime/coordinator/completions.h"

#include <utility>

namespace kolo {

void Completions::publish() {
  completing_.clear();
  for (auto& [submission, failure] : finished_) {
    if (submission->completion.done) continue;
    submission->completion.failure = std::move(failure);
    completing_.push_back(submission.get());
  }
  if (!completing_.empty()) {
    on_complete_(completing_.back()->request.name);
    queue_.retire(completing_);  // first: the next step may submit the same name as soon as the handle is done
  }
  for (Submission* submission : completing_) {
    Completion& completion = submission->completion;
    completion.done.set();
    if (submission->request.signature.device == DeviceKind::cpu) continue;
    completion.launched.set();  // last: without results it failed
  }
  finished_.clear();
}

}  // namespace kolo
