#include "runtime/coordinator/deadlines.h"

#include <fmt/format.h>

#include <algorithm>

namespace kolo {
namespace {

using namespace std::chrono_literals;

constexpr auto between_attempts = 400ms;  // so long has a rank to answer
constexpr int most_attempts = 15;
constexpr int opening_takes = 10;  // attempts: a group that opens needs the ranks' runtimes only, which may start late
constexpr auto turn_of_a_pair = 100ms;  // how often is looked for what waits behind another of its name

/// When it is overdue, or, if that has been said, when it is to be said again.
Deadlines::Time due(const Submission& submission) {
  const std::chrono::duration<double> allowed(*submission.request.timeout_seconds);
  return submission.request.submitted + std::chrono::duration_cast<std::chrono::nanoseconds>(allowed) +
         submission.pending.attempts * between_attempts;
}

}  // namespace

void Deadlines::add(const Submission& submission) {
  if (submission.request.timeout_seconds) next_ = std::min(next_, due(submission));
}

void Deadlines::look(Time now) {
  next_ = Time::max();
  for (const SubmissionPtr& submission : queue_.in_flight()) {
    if (!submission->request.timeout_seconds || submission->request.match) continue;  // those are the mail's
    if (due(*submission) <= now) overdue(submission);
    next_ = std::min(next_, std::max(due(*submission), now + turn_of_a_pair));
  }
}

void Deadlines::overdue(const SubmissionPtr& submission) {
  const Request& request = submission->request;
  GroupState* const group = groups_.find(request.group->key());
  if (!group || group->negotiator.broken()) return;  // it is failing
  const bool announced = submission->pending.agreed || group->negotiator.waits(submission);
  const SubmissionPtr& waits = announced ? submission : group->opening;
  if (!waits) return;  // not announced yet
  const int attempt = ++submission->pending.attempts - (announced ? 0 : opening_takes);
  if (attempt < 1) return;
  if (attempt <= most_attempts) return group->negotiator.overdue(waits, *request.timeout_seconds, attempt);
  group->negotiator.cut_off(  // the same text on every rank
      {ErrorCode::stalled,
       fmt::format(
           "group {}: what was not complete within its time-out was not decided on for {} s more; rank {}, which "
           "would ask who is missing, does not answer; see what it does",
           group->info->name, between_attempts * most_attempts / 1s, std::ranges::min(group->info->ranks))});
}

}  // namespace kolo
