#include "runtime/coordinator/continuations.h"

#include <fmt/format.h>

#include <exception>
#include <utility>

#include "ops/host/process.h"
#include "runtime/operation/arguments.h"

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

void Continuations::conclude(const Submission& submission) {
  if (submission.completion.failure) throw Error(*submission.completion.failure);
  if (const auto failure = queue_.claim_failure()) throw Error(*failure);
}

void Continuations::follow(const SubmissionPtr& submission, std::function<void()> task) {
  refuse_forked();
  callbacks_.start();
  const auto tasks = std::make_shared<Callbacks::Tasks>();
  tasks->push_back(std::move(task));
  const auto listener = std::make_shared<const std::function<void()>>([this, tasks] { callbacks_.post(*tasks); });
  if (!queue_.listen(submission, listener)) callbacks_.post(*tasks);
}

void Continuations::on_done(const SubmissionPtr& submission, std::function<void(const Error*)> function) {
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

void Continuations::detach(const SubmissionPtr& submission, std::shared_ptr<const void> keep_alive) {
  refuse_forked();
  if (keep_alive.use_count() > 0) follow(submission, [kept = std::move(keep_alive)] {});
  queue_.let_go(submission);
}

}  // namespace kolo
