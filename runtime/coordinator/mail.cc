#include "runtime/coordinator/mail.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "runtime/operation/arguments.h"

namespace kolo {
namespace {

using namespace std::chrono_literals;

constexpr int looks_at_lanes = 64;   // as of Executor::step()
constexpr auto looks_again = 100ms;  // whether what was matched still is: its message may be withdrawn

}  // namespace

Mail::Mail(PendingQueue& queue, Groups& groups, Completions& completions, const Losses& losses, ControlChannel& control)
    : queue_(queue),
      groups_(groups),
      completions_(completions),
      losses_(losses),
      control_(control),
      mailbox_(control.rank(), [&groups](int peer) { return groups.world().executor.lane(peer); }) {}

void Mail::submit(const SubmissionPtr& submission, bool known) {
  const Request& request = submission->request;
  auto failure = failure_of(request);
  if (const auto ended = ended_.find(request.parent->id); !failure && ended != ended_.end()) failure = ended->second;
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
  item->elsewhere = tensor.device.kind != DeviceKind::cpu;
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
  if (found == items_.end()) return;
  if (!found->second->matched) return end(submission, nullptr);
  no_longer_wants(*found->second);
}

/// It is matched: when it is not any more it ends.
void Mail::no_longer_wants(Item& item) {
  item.unwanted = true;
  next_ = std::min(next_, item.submission->request.submitted);
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
    if (item.elsewhere && !item.failure) {
      hand_over(item);
      items_.erase(item.submission.get());
      continue;
    }
    if (item.failure) item.failure->message = fmt::format("{}: {}", describe(request), item.failure->message);
    item.submission->pending.agreed = true;
    completions_.finished().push_back({item.submission, item.failure});
    items_.erase(item.submission.get());
  }
  completions_.publish();
  return true;
}

/// Both ranks are bound to it: what moves it is negotiated, may fail, and has the same time-out.
void Mail::hand_over(const Item& item) {
  item.submission->pending.agreed = true;
  const Request& asked = item.submission->request;
  const int me = groups_.world().info->rank, other = item.sends ? item.peers.front() : item.peer;
  Request request;
  request.group = pair_info(item.sends ? me : other, item.sends ? other : me, groups_.world().info->size(), me);
  request.parent = asked.parent;
  request.text = fmt::format("kolo.by tag (group {})", asked.parent->name);
  BucketTensor both = asked.tensors.front();
  const std::size_t bytes = item.sends ? item.bytes : item.received;
  both.in.shape = Shape{static_cast<std::int64_t>(bytes / size_of(item.dtype))};
  if (!item.sends) both.out = both.in;
  request.signature = {.kind = OpKind::send_recv,
                       .dtype = item.dtype,
                       .device = asked.signature.device,
                       .root = item.sends ? request.group->rank : 1 - request.group->rank,
                       .shape = both.in.shape};
  request.tensors.push_back(both);
  request.ready = asked.ready;
  request.timeout_seconds = asked.timeout_seconds;
  request.submitted = asked.submitted;
  request.stands_for = item.submission;
  try {
    (void)queue_.submit(std::move(request));
  } catch (const Error& error) {  // this rank leaves, which the other one learns
    const Failure failure = error.failure();
    completions_.complete(item.submission, &failure);
  }
}

/// How it fails since a rank of its group is gone; or, as what moves on GPUs is negotiated, since the world has failed.
std::optional<Failure> Mail::failure_of(const Request& request) const {
  if (auto lost = losses_.failure_of(*request.parent)) return lost;
  const auto& world = groups_.world().negotiator.failure();
  return request.signature.device == DeviceKind::cpu ? std::nullopt : std::optional<Failure>(world);
}

/// Whether a rank has closed its session. Once the world has failed it says so only in the groups that have not.
bool Mail::has_left(int peer, const GroupInfo& group) const {
  const Negotiator& world = groups_.world().negotiator;
  if (world.has_closed(peer)) return true;
  if (!world.broken()) return false;
  const GroupState* const known = groups_.find(group.key());
  return control_.has_closed(peer) || (known && known->negotiator.has_closed(peer));
}

/// How what has no partner fails if all ranks that could be it have closed their sessions.
std::optional<Failure> Mail::left_failure(const Item& item) const {
  const auto gone = [&](int peer) { return has_left(peer, *item.submission->request.parent); };
  if (item.matched || item.done || item.peers.empty() || !std::ranges::all_of(item.peers, gone)) return std::nullopt;
  return Failure{ErrorCode::closed,
                 fmt::format("{}: rank {} closed the session; close sessions when all ranks are done",
                             describe(item.submission->request), item.peers.front())};
}

bool Mail::look(Time now) {
  const bool late = now >= next_;
  const GroupState& world = groups_.world();
  auto left = static_cast<std::ptrdiff_t>(world.negotiator.left().size());
  if (world.negotiator.broken()) {
    left += std::ranges::count_if(world.info->ranks, [this](int rank) { return control_.has_closed(rank); });
    groups_.each([&](const GroupState& one) { left += static_cast<std::ptrdiff_t>(one.negotiator.left().size()); });
  }
  const bool lost = losses_.lost() != lost_ || left != left_;
  if (!late && !lost) return false;
  if (left != left_) mailbox_.advance();  // hears what was sent before
  left_ = left;
  lost_ = losses_.lost();
  next_ = Time::max();
  std::vector<std::pair<SubmissionPtr, std::optional<Failure>>> ending;
  for (const auto& [key, item] : items_) {
    const Request& request = item->submission->request;
    const bool overdue = item->due && *item->due <= now && !item->done && !is_bound(*item);
    if (const auto failure = failure_of(request)) {
      ending.emplace_back(item->submission, *failure);
    } else if (item->ends_with && !is_bound(*item)) {
      ending.emplace_back(item->submission, *item->ends_with);
    } else if (const auto closed = left_failure(*item)) {
      ending.emplace_back(item->submission, *closed);
    } else if (item->unwanted && !item->matched && !item->done) {
      ending.emplace_back(item->submission, std::nullopt);
    } else if (overdue) {
      const std::string_view what = item->sends     ? "its receive has not come"
                                    : item->matched ? "its message has not come to its end"
                                                    : "no message has come";
      ending.emplace_back(item->submission,
                          Failure{ErrorCode::stalled, fmt::format("{}: {} within {} s; see what the other rank does",
                                                                  describe(request), what, *request.timeout_seconds)});
    } else if (item->unwanted || item->due) {
      const Time again = now + looks_again;
      next_ = std::min(next_, item->unwanted || *item->due <= now ? again : *item->due);
    }
  }
  for (const auto& [submission, failure] : ending) end(submission, failure ? &*failure : nullptr);
  return !ending.empty();
}

void Mail::fail(const Failure& failure, bool all) {
  std::vector<SubmissionPtr> ending;
  for (const auto& [key, item] : items_) {
    if (all || item->elsewhere) ending.push_back(item->submission);
  }
  for (const SubmissionPtr& submission : ending) end(submission, &failure);
}

/// What the two ranks have agreed to move on their GPUs neither ends alone.
bool Mail::is_bound(const Item& item) {
  return item.elsewhere && (item.matched || item.done);
}

void Mail::end_group(const GroupInfo& group, const Failure& failure) {
  ended_.try_emplace(group.id, failure);
  std::vector<SubmissionPtr> ending;
  for (const auto& [key, item] : items_) {
    if (item->submission->request.parent->id != group.id) continue;
    if (is_bound(*item)) {
      item->ends_with = failure;
      no_longer_wants(*item);
    } else {
      ending.push_back(item->submission);
    }
  }
  for (const SubmissionPtr& submission : ending) end(submission, &failure);
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
