#include <kolo/error.h>

#include "runtime/coordinator/driver.h"
#include "runtime/operation/arguments.h"

// What follows an operation when it is done, beside the threads that wait for it.

namespace kolo {

bool Driver::listen(const SubmissionPtr& submission, const Listener& listener) {
  check_process();
  flush(submission, false);
  const bool listens = queue_.listen(submission, listener);
  hand_over();
  return listens;
}

void Driver::follow(const SubmissionPtr& submission, std::function<void()> task) {
  check_process();
  callbacks_.start();
  const auto tasks = std::make_shared<Callbacks::Tasks>();
  tasks->push_back(std::move(task));
  const auto listener = std::make_shared<const std::function<void()>>([this, tasks] { callbacks_.post(*tasks); });
  if (!listen(submission, listener)) callbacks_.post(*tasks);
}

void Driver::on_done(const SubmissionPtr& submission, std::function<void(const Error*)> function) {
  follow(submission, [submission, function = std::move(function)] {
    auto failure = submission->completion.failure;
    if (!failure && !submission->pending.agreed)
      failure = {ErrorCode::aborted, describe(submission->request) +
                                         ": withdrawn (its handle died before the ranks had agreed on it); "
                                         "detach() the handle or keep it"};
    if (!failure) return function(nullptr);
    const Error error(*failure);
    function(&error);
  });
}

void Driver::detach(const SubmissionPtr& submission, std::shared_ptr<const void> keep_alive) {
  check_process();
  if (keep_alive) follow(submission, [kept = std::move(keep_alive)] {});
  flush(submission);
  queue_.let_go(submission);
  hand_over();
}

bool Driver::wait_until(const SubmissionPtr& submission, Clock::time_point deadline) {
  check_process();
  flush(submission, false);
  wait_until(submission->completion.done, deadline);
  return submission->completion.done.is_set();
}

}  // namespace kolo
