#include <fmt/format.h>

#include <exception>

#include <kolo/error.h>

#include "ops/host/process.h"
#include "runtime/coordinator/driver.h"
#include "runtime/operation/arguments.h"

// What follows an operation when it is done, beside the threads that wait for it.

namespace kolo {
namespace {

/// How an operation has failed that is done.
std::optional<Error> error_of(const Submission& submission) {
  if (submission.completion.failure) return Error(*submission.completion.failure);
  if (submission.pending.agreed) return std::nullopt;
  return Error(ErrorCode::aborted, describe(submission.request) +
                                       ": withdrawn (its handle died before the ranks had agreed on it); detach() the "
                                       "handle or keep it");
}

}  // namespace

void Driver::conclude(const Submission& submission) {
  if (submission.completion.failure) throw Error(*submission.completion.failure);
  if (const auto failure = claim_failure()) throw Error(*failure);
}

bool Driver::listen(const SubmissionPtr& submission, const Listener& listener) {
  refuse_forked();
  flush(submission, false);
  const bool listens = queue_.listen(submission, listener);
  hand_over();
  return listens;
}

void Driver::follow(const SubmissionPtr& submission, std::function<void()> task) {
  refuse_forked();
  callbacks_.start();
  const auto tasks = std::make_shared<Callbacks::Tasks>();
  tasks->push_back(std::move(task));
  const auto listener = std::make_shared<const std::function<void()>>([this, tasks] { callbacks_.post(*tasks); });
  if (!listen(submission, listener)) callbacks_.post(*tasks);
}

void Driver::on_done(const SubmissionPtr& submission, std::function<void(const Error*)> function) {
  follow(submission, [this, submission, function = std::move(function)] {
    const auto complain = [&](const char* what) {
      report(config_,
             fmt::format("{}: the function that follows it has thrown ({}), which nobody catches; catch it there",
                         describe(submission->request), what));
    };
    try {
      const std::optional<Error> error = error_of(*submission);
      function(error ? &*error : nullptr);
    } catch (const std::exception& error) {
      complain(error.what());
    } catch (...) {
      complain("an exception of an unknown type");
    }
  });
}

void Driver::detach(const SubmissionPtr& submission, std::shared_ptr<const void> keep_alive) {
  refuse_forked();
  if (keep_alive.use_count() > 0) follow(submission, [kept = std::move(keep_alive)] {});
  flush(submission);
  queue_.let_go(submission);
  hand_over();
}

bool Driver::wait_until(const SubmissionPtr& submission, Clock::time_point deadline) {
  refuse_forked();
  flush(submission, false);
  wait_until(submission->completion.done, deadline);
  return submission->completion.done.is_set();
}

}  // namespace kolo
