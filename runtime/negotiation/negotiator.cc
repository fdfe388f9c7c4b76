#include "runtime/negotiation/negotiator.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "runtime/operation/arguments.h"
#include "runtime/operation/block_sizes.h"

namespace kolo {

Negotiator::Negotiator(std::shared_ptr<const GroupInfo> group, TreePosition position, std::int64_t fusion_bytes,
                       std::size_t room, bool tunes_fusion)
    : position_(std::move(position)), membership_(std::move(group)), table_(position_.subtrees), link_(position_) {
  if (position_.root()) {
    root_ = std::make_unique<Root>(plan_, table_, membership_, fusion_bytes, tunes_fusion, room,
                                   [this](const DownMessage& message) { down(message); });
  }
}

// ---- the local program ----------------------------------------------------------------------------------------------

void Negotiator::submit(const SubmissionPtr& submission) {
  if (retired_ && !over()) return;
  const Request& request = submission->request;
  if (const auto failure = take_late_failure(*submission)) {
    decisions_.failed.push_back({submission, *failure});
  } else if (over()) {
    fail(submission);
  } else if (request.signature.kind == OpKind::join) {
    joining_.push_back(submission);
  } else if (!joining_.empty()) {
    decisions_.failed.push_back(
        {submission,
         {ErrorCode::invalid_argument,
          fmt::format("{}: rank {} has joined; submit nothing to the group until join() returns",
                      describe(request.signature.kind, request.name(), group().name), position_.rank)}});
  } else {
    submission->pending.run = run_;
    announce(submission);
    if (root_) root_->submitted(submission, !outstanding_.numbered(*submission, plan_));
  }
}

void Negotiator::announce(const SubmissionPtr& submission) {
  if (const auto complete = outstanding_.add(submission, plan_)) {
    up(0, ready(*complete));
  } else if (!outstanding_.numbered(*submission, plan_)) {
    ++full_announcements_;
    Announcement message{
        .name = submission->request.name(),
        .variants = {{submission->request.signature, submission->pending.objection.optional(), {position_.rank}}},
        .known = plan_.epoch()};
    if (!submission->pending.sizes.empty()) message.sizes.push_back({0, {position_.rank}, submission->pending.sizes});
    up(0, message);
  }
}

/// What was announced in full before is void.
void Negotiator::announce_anew(const std::vector<SubmissionPtr>& submissions) {
  for (const SubmissionPtr& submission : submissions) {
    announce(submission);
    if (submission->pending.flushed_at > 0) up(0, Waiting{submission->request.name(), plan_.epoch()});
  }
}

void Negotiator::submit_again(const SubmissionPtr& submission) {
  if (const auto failure = take_late_failure(*submission)) return decisions_.failed.push_back({submission, *failure});
  if (over()) return fail(submission);
  if (retired_) return;
  if (submission->pending.scratch) {  // a neutral contribution; meanwhile the ranks may have decided otherwise
    const auto number = plan_.find(submission->request.name(), submission->request.signature);
    if (!joined() || !number || !table_.votes(plan_.row(*number).bucket)) return;
    submission->pending.run = run_;
  }
  announce(submission);
  if (submission->pending.flushed_at == 0) return;
  outstanding_.wait_for(submission);
  if (const auto split = outstanding_.split_for(*submission, plan_)) up(0, *split);
}

void Negotiator::flush(const SubmissionPtr& submission, std::uint64_t sequence, bool standstill) {
  if (retired_) return;
  const bool moves = moves_data(submission->request.signature.kind);
  if (!moves) {  // a barrier or a join flushes everything before it
    for (const SubmissionPtr& earlier : outstanding_.all()) {
      if (moves_data(earlier->request.signature.kind)) flush(earlier, sequence);
    }
  }
  std::uint64_t& flushed_at = submission->pending.flushed_at;
  const bool first = flushed_at == 0;
  if (first) flushed_at = sequence;  // also if it does not wait here: it may be submitted again, or be a pair's next
  if (!outstanding_.holds(*submission, plan_)) return;
  if (first) {
    outstanding_.wait_for(submission);
    if (moves && !outstanding_.numbered(*submission, plan_)) up(0, Waiting{submission->request.name(), plan_.epoch()});
  }
  if (auto split = outstanding_.split_for(*submission, plan_)) {
    split->standstill = standstill && outstanding_.numbered(*submission, plan_);
    up(0, *split);
  }
}

void Negotiator::flush_all() {
  const std::vector<SubmissionPtr> here = outstanding_.all();
  for (const SubmissionPtr& submission : here) {
    if (!layout_matters(submission->request.signature)) flush(submission, here.back()->queued.sequence, true);
  }
}

void Negotiator::give_part(BucketId bucket) {
  if (auto split = outstanding_.part_of(bucket, plan_)) {
    split->standstill = true;
    up(0, *split);
  }
}

void Negotiator::overdue(const SubmissionPtr& submission, double seconds, int attempt) {
  if (attempt == 1) late_.overdue(submission);
  const bool agreed = submission->pending.agreed && !in_order();
  const Request& request = submission->request;
  up(0,
     Overdue{request.name(), request.signature.kind, position_.rank, seconds, attempt, agreed && !waits(submission)});
}

void Negotiator::cut_off(const Failure& failure) {
  fail_group(failure);
  down(GroupFailed{failure});
  cut_off_ = true;
}

void Negotiator::withdraw(const SubmissionPtr& submission) {
  if (retired_ || submission->pending.agreed || !outstanding_.holds(*submission, plan_)) return;  // too late
  if (const auto retract = outstanding_.withdraw(submission, plan_)) {
    up(0, *retract);
  } else {
    decisions_.withdrawn.push_back(submission);
  }
}

/// A rank joins once everything that it has submitted is agreed: so whatever runs later runs without values of its own.
void Negotiator::join_when_ready() {
  if (joining_.empty() || join_announced_ || hold_join_ || !outstanding_.empty() || !decisions_.to_allocate.empty() ||
      over())
    return;
  join_announced_ = true;
  up(0, Joined{position_.rank});
}

// ---- from children, and from this rank ------------------------------------------------------------------------------

void Negotiator::receive_from_child(int neighbour, Reader& reader) {
  const auto found = std::ranges::find(position_.children, neighbour);
  if (found == position_.children.end()) {
    throw Error(ErrorCode::backend, fmt::format("control message from rank {}, which is no neighbour", neighbour));
  }
  const int child = static_cast<int>(found - position_.children.begin()) + 1;
  while (!reader.done()) {
    const UpMessage message = decode_up(reader);
    if (!retired_ || ends_all(message)) std::visit([&](const auto& one) { up(child, one); }, message);
  }
}

void Negotiator::up(int child, const Retract& message) {
  switch (table_.retract(child, message)) {
    case ReadyTable::Retraction::done: answer({child}, message); break;
    case ReadyTable::Retraction::ignored: break;  // decided or void: the child learns that from the decisions
    case ReadyTable::Retraction::passed_on:
      if (root_) break;  // complete at the root is as good as decided
      pass_on();         // what is taken back must have been announced before
      link_.to_parent(message);
      break;
  }
}

/// What all have announced before a rank leaves still runs.
void Negotiator::up(int, const Left& message) {
  if (!message.abandoned && !retired_) {
    end_run();
    decide();
  }
  root_ ? down(message) : link_.to_parent(message);
}

/// What became complete in this position's subtree, to the parent.
void Negotiator::pass_on() {
  ReadyTable::News& news = table_.take();
  if (over()) return;
  for (const Ready& message : news.ready) link_.to_parent(message);
  for (Announcement& message : news.announced) {
    message.known = plan_.epoch();
    link_.to_parent(message);
  }
}

void Negotiator::decide() {
  if (retired_) return;
  part();  // of what was withdrawn, too
  join_when_ready();
  if (!root_) return pass_on();
  for (bool more = !over(); more;) {
    more = root_->decide();
    join_when_ready();
    more |= !table_.quiet();  // a decision can complete something else
  }
}

bool Negotiator::has_news() const {
  if (retired_) return !link_.empty();
  return !table_.quiet() || (root_ && root_->has_news()) || !joining_.empty() || !link_.empty();
}

// ---- decisions ------------------------------------------------------------------------------------------------------

void Negotiator::receive_from_parent(Reader& reader) {
  while (!reader.done()) {
    const DownMessage message = decode_down(reader);
    if (const auto* const gone = std::get_if<Gone>(&message)) tell(*gone);
    if (cut_off_ || ((retired_ || broken_) && !ends_all(message))) continue;
    if (std::holds_alternative<Gone>(message)) continue;
    const auto* retracted = std::get_if<Retracted>(&message);  // meant for this position alone
    retracted ? apply(*retracted) : down(message);
  }
}

void Negotiator::down(const DownMessage& message) {
  link_.to_children(message);
  std::visit([&](const auto& decision) { apply(decision); }, message);
}

void Negotiator::apply(const Define& message) {
  if (root_) root_->release(message.name);
  table_.voided(message.name);
  const TensorNumber number = plan_.define(message.name, message.signature);
  if (root_) root_->defined(number);
  announce_anew(outstanding_.defined(number, plan_, decisions_.withdrawn));
}

void Negotiator::apply(const Replan& message) {
  for (const Define& define : message.defined) apply(define);
  const BucketId first_new = plan_.next_bucket();
  after_replan(plan_.regroup(message), first_new);
}

void Negotiator::apply(const Run& message) {
  for (const SizesOfRanks& sizes : message.sizes) plan_.set_sizes(sizes);
  for (BucketId bucket : message.buckets) run(bucket);
  ++agreements_;
}

void Negotiator::run(BucketId bucket) {
  AgreedBucket agreed{.members = {}, .absent = membership_.absent()};
  const auto& numbers = plan_.to_run(bucket, group(), agreed.absent);  // throws before anything is taken
  // Whoever has joined makes its part first: there may be no memory for it.
  const bool voted = table_.run(bucket, agreed.absent.empty());
  bool again = !voted;
  if (voted || !joined()) agreed.members = outstanding_.take(bucket, plan_);
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const PlanCache::Row& tensor = plan_.row(numbers[i]);
    if (tensor.signature.kind == OpKind::open_group && !joined() && !agreed.members[i]->pending.introduced)
      agreed.members[i]->pending.of_ranks = plan_.sizes_by_rank(numbers[i], group().ranks, {}, agreed.absent);
    std::vector<std::vector<std::int64_t>> sizes;
    if (has_rows(tensor.signature.kind)) {
      const AgreedRows& rows = plan_.agreed_rows(numbers[i], group(), agreed.absent);
      again |= rows.to_be_allocated;
      if (joined())
        sizes = rows.of_rank;
      else
        set_agreed_rows(*agreed.members[i], rows);
    }
    if (!joined()) continue;
    if (voted) decisions_.without_this_rank.push_back(tensor.name);
    if (!voted) decisions_.to_contribute.push_back({tensor.name, tensor.signature, std::move(sizes), agreed.absent});
  }
  for (const SubmissionPtr& member : agreed.members) {
    member->pending.agreed = true;
    if (again) decisions_.to_allocate.push_back(member);
  }
  if (!again) decisions_.run.emplace_back(std::move(agreed));
}

/// What waits here of these, or under a name, is announced in full.
void Negotiator::apply(const Forget& message) {
  plan_.check(message.tensors);
  if (root_) root_->forgot();
  const auto here = outstanding_.take_forgotten(message.tensors, decisions_.withdrawn);
  const BucketId first_new = plan_.next_bucket();
  table_.all_voided();
  after_replan(plan_.forget(message, decisions_.forgotten), first_new);
  announce_anew(here);
}

void Negotiator::apply(const Reject& message) {
  if (joined()) decisions_.without_this_rank.push_back(message.name);
  const BucketId first_new = plan_.next_bucket();
  give_up(message.name, message.failure);
  after_replan(plan_.isolate(message.name), first_new);
}

/// What waits here under this name fails, and what was announced of it is forgotten. Returns whether anything waits.
bool Negotiator::give_up(const std::string& name, const Failure& failure) {
  if (root_) root_->release(name);
  table_.voided(name);
  const auto taken = outstanding_.take(name, plan_);
  for (const SubmissionPtr& submission : taken) decisions_.failed.push_back({submission, failure});
  return !taken.empty();
}

void Negotiator::apply(const Joined& message) {
  const bool all = membership_.join(message.rank);
  if (message.rank == position_.rank) late_.pass_over(decisions_.without_this_rank);
  table_.joined(membership_.joined());
  if (!all) return;
  join_announced_ = false;
  for (const SubmissionPtr& submission : std::exchange(joining_, {})) {
    submission->pending.agreed = true;
    submission->completion.last_to_join = membership_.last_to_join();
    decisions_.completed.push_back(submission);
  }
}

void Negotiator::apply(const WhoHas& message) {
  if (joined()) return;
  if (in_order() && message.name.starts_with('#')) {
    const std::uint64_t begun = sequence_.begun();
    const bool here = begun > std::strtoull(message.name.c_str() + 1, nullptr, 10);
    return up(0, Presence{message.name, position_.rank, here, late_.is_overdue(message.name, nullptr), message.question,
                          begun == 0 ? "nothing" : sequence_.text(begun - 1)});
  }
  const SubmissionPtr here = outstanding_.find(message.name, plan_);
  if (here) flush(here, here->queued.sequence);
  if (here && layout_matters(here->request.signature) && outstanding_.numbered(*here, plan_))
    give_part(plan_.row(*plan_.find(*here)).bucket);
  up(0,
     Presence{message.name, position_.rank, here != nullptr, late_.is_overdue(message.name, here), message.question});
}

void Negotiator::apply(const Expired& message) {
  if (over()) return;  // it has failed with everything else
  if (joined()) decisions_.without_this_rank.push_back(message.name);
  const BucketId first_new = plan_.next_bucket();
  if (!give_up(message.name, message.failure) && !joined()) late_.fail_next(message.name, message.failure);
  after_replan(plan_.expire(message.name), first_new);
}

void Negotiator::apply(const Left& message) {
  membership_.leave(message.rank, message.begun);
  if (message.abandoned && message.rank != position_.rank) {
    tell({message.rank,
          fmt::format("rank {} left without finishing (an error ended its program); see what that rank printed",
                      message.rank)});
    apply(GroupFailed{{ErrorCode::aborted,
                       fmt::format("group {}: rank {} left without finishing (an error ended its program); see what "
                                   "that rank printed",
                                   group().name, message.rank)}});
    return;
  }
  for (const SubmissionPtr& submission : take_everything()) fail(submission);
}

void Negotiator::apply(const GroupFailed& message) {
  if (broken_) return;  // the first one decides, for those who submit later too
  broken_ = message.failure;
  decisions_.broken = message.failure;
  for (const SubmissionPtr& submission : take_everything()) decisions_.failed.push_back({submission, message.failure});
}

std::vector<SubmissionPtr> Negotiator::take_everything() {
  std::vector<SubmissionPtr> taken = outstanding_.take_all();
  for (const SubmissionPtr& submission : std::exchange(joining_, {})) taken.push_back(submission);
  return taken;
}

/// What was announced of a retired bucket is void on every rank: each announces anew what is complete now.
void Negotiator::after_replan(const std::vector<BucketId>& retired, BucketId first_new) {
  table_.retired(retired);
  const auto complete = outstanding_.regrouped(retired, first_new, plan_);
  if (joined()) return outstanding_.take_from(first_new, plan_);  // what it voted for; it is asked anew
  withdrawn(outstanding_.withdrawn_from(first_new, plan_));
  for (BucketId bucket : complete) {
    if (outstanding_.announced(bucket)) up(0, ready(bucket));
  }
  for (const SplitBucket& split : outstanding_.splits(plan_)) up(0, split);
  part();
}

void Negotiator::answer(const std::vector<int>& children, const Retract& what) {
  for (const int child : children) {
    if (child == 0) {
      withdrawn(outstanding_.withdrawn(what, plan_));
    } else {
      link_.to_child(static_cast<std::size_t>(child - 1), Retracted{what});
    }
  }
}

}  // namespace kolo
