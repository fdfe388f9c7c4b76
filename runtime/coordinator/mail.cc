#include "runtime/coordinator/mail.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "runtime/operation/arguments.h"

namespace kolo {
namespace {

constexpr int looks_at_lanes = 64;  // as of Executor::step()

}  // namespace

Mail::Mail(Groups& groups, Completions& completions, const Losses& losses, int rank)
    : groups_(groups),
      completions_(completions),
      losses_(losses),
      mailbox_(rank, [&groups](int peer) { return groups.world().executor.lane(peer); }) {}

void Mail::submit(const SubmissionPtr& submission, bool known) {
  const Request& request = submission->request;
  auto failure = losses_.failure_of(*request.parent);
  if (!known) failure = {ErrorCode::closed, fmt::format("{}: the group was removed; make it again", describe(request))};
  if (failure) return completions_.complete(submission, &*failure);
  const PairMatch& match = *request.match;
  auto item = std::make_unique<Item>();
  const Tensor& tensor = match.sends ? request.tensors.front().in : request.tensors.front().out;
  item->sends = match.sends;
  item->group = request.parent->id;
  item->dtype = tensor.dtype;
  item->data = static_cast<std::byte*>(tensor.data);
  item->bytes = tensor.bytes();
  item->tags = match.tags;
  item->shorter = match.peer < 0;
  for (const int rank : request.parent->ranks) {
    const bool me = rank == request.parent->ranks[static_cast<std::size_t>(request.parent->rank)];
    const bool other = match.peer < 0 || rank == request.parent->ranks[static_cast<std::size_t>(match.peer)];
    if (!me && other) item->peers.push_back(rank);
  }
  item->submission = submission;
  if (left_failure(*item)) left_ = -1;  // unless it was sent before
  try {
    mailbox_.post(*item);
  } catch (const Error& error) {
    failure = error.failure();
    return completions_.complete(submission, &*failure);
  }
  if (request.timeout_seconds) {
    const std::chrono::duration<double> allowed(*request.timeout_seconds);
    item->due = request.submitted + std::chrono::duration_cast<std::chrono::nanoseconds>(allowed);
    next_ = std::min(next_, *item->due);
  }
  items_.emplace(submission.get(), std::move(item));
}

void Mail::withdraw(const SubmissionPtr& submission) {
  const auto found = items_.find(submission.get());
  if (found == items_.end() || found->second->matched) return;
  end(submission, nullptr);
}

/// It is withdrawn, and done.
void Mail::end(const SubmissionPtr& submission, const Failure* failure) {
  const auto found = items_.find(submission.get());
  try {
    mailbox_.withdraw(*found->second);
  } catch (const Error&) {  // the other rank is not told
  }
  items_.erase(found);
  completions_.complete(submission, failure);
}

bool Mail::step() {
  if (items_.empty() && !mailbox_.has_work()) return false;
  bool moved = mailbox_.advance();
  const bool polls = mailbox_.needs_polling();
  for (int look = 1; !moved && !polls && look < looks_at_lanes && !items_.empty(); ++look) moved = mailbox_.advance();
  return finish_all() || moved;
}

bool Mail::finish_all() {
  auto& finished = mailbox_.finished();
  if (finished.empty()) return false;
  for (Parcel* const parcel : std::exchange(finished, {})) {
    auto& item = static_cast<Item&>(*parcel);
    const Request& request = item.submission->request;
    if (Received* const received = request.match->received; received && !item.failure) {
      const auto& ranks = request.parent->ranks;
      *received = {static_cast<int>(std::ranges::find(ranks, item.peer) - ranks.begin()), item.tag, item.received};
    }
    if (item.failure) item.failure->message = fmt::format("{}: {}", describe(request), item.failure->message);
    item.submission->pending.agreed = true;
    completions_.finished().push_back({item.submission, item.failure});
    items_.erase(item.submission.get());
  }
  completions_.publish();
  return true;
}

/// How what has no partner fails if all ranks that could be it have closed their sessions.
std::optional<Failure> Mail::left_failure(const Item& item) const {
  const RankSet& left = groups_.world().negotiator.left();
  const auto has_left = [&](int peer) { return left.contains(peer); };
  if (item.matched || item.done || item.peers.empty() || !std::ranges::all_of(item.peers, has_left))
    return std::nullopt;
  return Failure{ErrorCode::closed,
                 fmt::format("{}: rank {} closed the session; close sessions when all ranks are done",
                             describe(item.submission->request), item.peers.front())};
}

bool Mail::look(Time now) {
  const bool late = now >= next_;
  const auto left = groups_.world().negotiator.left().size();
  const bool lost = losses_.lost() != lost_ || left != left_;
  if (!late && !lost) return false;
  if (left != left_) step();  // what was sent before
  left_ = left;
  lost_ = losses_.lost();
  next_ = Time::max();
  std::vector<std::pair<SubmissionPtr, Failure>> ending;
  for (const auto& [key, item] : items_) {
    const Request& request = item->submission->request;
    if (const auto failure = losses_.failure_of(*request.parent)) {
      ending.emplace_back(item->submission, *failure);
    } else if (const auto closed = left_failure(*item)) {
      ending.emplace_back(item->submission, *closed);
    } else if (item->due && *item->due <= now && !item->done) {
      const std::string_view what = item->sends     ? "its receive has not come"
                                    : item->matched ? "its message has not come to its end"
                                                    : "no message has come";
      ending.emplace_back(item->submission,
                          Failure{ErrorCode::stalled, fmt::format("{}: {} within {} s; see what the other rank does",
                                                                  describe(request), what, *request.timeout_seconds)});
    } else if (item->due) {
      next_ = std::min(next_, *item->due);
    }
  }
  for (const auto& [submission, failure] : ending) end(submission, &failure);
  return !ending.empty();
}

void Mail::fail(const Failure& failure) {
  while (!items_.empty()) {
    const SubmissionPtr submission = items_.begin()->second->submission;
    end(submission, &failure);
  }
}

bool Mail::leave() {
  std::erase_if(items_, [&](const auto& entry) {
    Item& item = *entry.second;
    const bool alone = !item.matched && !item.done;
    if (alone) mailbox_.withdraw(item);
    return alone;
  });
  return items_.empty();
}

}  // namespace kolo
