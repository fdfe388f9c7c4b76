#include "runtime/negotiation/negotiator.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/negotiation/mismatch.h"

namespace kolo {
namespace {

Failure joined_failure(const Submission& submission, const GroupInfo& group, int rank) {
  return {ErrorCode::invalid_argument,
          fmt::format("{}: rank {} has joined; submit nothing to the group until join() returns",
                      describe(submission.signature.kind, submission.name, group.name), rank)};
}

}  // namespace

Negotiator::Negotiator(std::shared_ptr<const GroupInfo> group, TreePosition position, std::int64_t fusion_bytes,
                       int gpu)
    : group_(std::move(group)),
      gpu_(gpu),
      position_(std::move(position)),
      learner_(fusion_bytes),
      table_(position_.subtrees),
      monitored_barrier_(group_),
      to_child_(position_.children.size()) {}

// ---- the local program ----------------------------------------------------------------------------------------------

void Negotiator::submit(const SubmissionPtr& submission) {
  const bool monitored = submission->signature.kind == OpKind::monitored_barrier;
  if (const auto failure = monitored ? monitored_barrier_.failure_of(submission->name) : std::nullopt) {
    decisions_.failed.push_back({submission, *failure});
  } else if (over()) {
    decisions_.failed.push_back({submission, broken_ ? *broken_ : departure_failure(*submission)});
  } else if (submission->signature.kind == OpKind::join) {
    joining_.push_back(submission);
  } else if (!joining_.empty()) {
    decisions_.failed.push_back({submission, joined_failure(*submission, *group_, position_.rank)});
  } else if (monitored) {
    monitored_barrier_.wait(submission);
    up(0, BarrierArrived{submission->name, {position_.rank}});
  } else {
    announce(submission);
    if (position_.root()) learner_.submitted(submission, !local_.numbered(*submission, plan_));
  }
}

void Negotiator::announce(const SubmissionPtr& submission) {
  if (const auto complete = local_.add(submission, plan_)) {
    up(0, ready(*complete));
  } else if (!local_.numbered(*submission, plan_)) {
    ++full_announcements_;
    Announcement record{.name = submission->name,
                        .variants = {{submission->signature, submission->failure, {position_.rank}}},
                        .known = plan_.next_number()};
    if (!submission->sizes.empty()) record.sizes.push_back({0, {position_.rank}, submission->sizes});
    up(0, record);
  }
}

void Negotiator::submit_again(const SubmissionPtr& submission) {
  if (over()) {
    decisions_.failed.push_back({submission, broken_ ? *broken_ : departure_failure(*submission)});
    return;
  }
  announce(submission);
  if (submission->flushed_at == 0) return;
  waited_for_.push_back(submission);
  if (const auto cut = local_.cut_for(*submission, plan_)) up(0, *cut);
}

/// A bucket that is complete here, with those sizes of this rank that are not the last run's.
Ready Negotiator::ready(BucketId bucket) const {
  Ready record{bucket, {}};
  for (TensorNumber number : *plan_.members(bucket)) {
    const SubmissionPtr submission = local_.find(number);
    if (!submission || submission->sizes.empty()) continue;
    const auto& last = plan_.row(number).sizes;
    const auto mine = last.find(position_.rank);
    if (mine == last.end() || mine->second != submission->sizes)
      record.sizes.push_back({number, {position_.rank}, submission->sizes});
  }
  return record;
}

void Negotiator::flush(const SubmissionPtr& submission, std::uint64_t sequence) {
  if (!moves_data(submission->signature.kind)) {  // a barrier or a join looks at everything before it
    for (const SubmissionPtr& earlier : local_.all()) {
      if (moves_data(earlier->signature.kind)) flush(earlier, sequence);
    }
  }
  if (!local_.holds(*submission, plan_)) {
    if (submission->flushed_at == 0)
      submission->flushed_at = sequence;  // it may be submitted again, or be a pair's next
    return;
  }
  if (submission->flushed_at == 0) {
    submission->flushed_at = sequence;
    waited_for_.push_back(submission);
    if (moves_data(submission->signature.kind) && !local_.numbered(*submission, plan_))
      up(0, Waiting{submission->name});
  }
  if (const auto cut = local_.cut_for(*submission, plan_)) up(0, *cut);
}

void Negotiator::stand_still() {
  const std::vector<SubmissionPtr> here = local_.all();
  for (const SubmissionPtr& submission : here) flush(submission, here.back()->sequence);
}

void Negotiator::end_run() {
  if (position_.root()) learner_.waited();
}

void Negotiator::overdue(const SubmissionPtr& submission, double seconds) {
  up(0, BarrierTimeout{submission->name, position_.rank, seconds});
}

void Negotiator::give_up(const SubmissionPtr& submission, const Failure& failure) {
  if (monitored_barrier_.released({submission->name, failure})) decisions_.failed.push_back({submission, failure});
}

bool Negotiator::holds_up_others() const {
  return std::ranges::any_of(wanted_, [&](const std::string& name) { return held_.contains(name); });
}

/// A rank joins once everything that it has submitted is agreed: so whatever runs later runs without values of its own.
void Negotiator::join_when_ready() {
  if (joining_.empty() || join_announced_ || hold_join_ || !local_.empty() || !monitored_barrier_.empty() ||
      !decisions_.to_allocate.empty() || over())
    return;
  join_announced_ = true;
  up(0, Joined{position_.rank});
}

void Negotiator::withdraw(const SubmissionPtr& submission) {
  if (submission->agreed || !local_.holds(*submission, plan_)) return;  // too late
  Retract what;
  if (local_.numbered(*submission, plan_)) {
    what.bucket = plan_.row(*plan_.find(*submission)).bucket;
    if (!local_.announced(*what.bucket)) {
      local_.remove(*submission, plan_);
      std::erase(waited_for_, submission);
      decisions_.withdrawn.push_back(submission);
      return;
    }
  } else {
    what.name = submission->name;
  }
  withdrawing_.push_back(submission);
  up(0, what);
}

void Negotiator::depart(bool abandoned) {
  const Left record{position_.rank, abandoned};
  if (abandoned) {  // this rank hands nothing on from now on, so it tells both sides itself
    for (Writer& child : to_child_) encode(child, DownRecord(record));
  }
  up(0, record);
}

void Negotiator::break_down(const Failure& failure) {
  up(0, GroupFailed{failure});
}

void Negotiator::report_fault(const Failure& failure) {
  up(0, DeviceFault{failure, faults_});
}

// ---- the neighbours -------------------------------------------------------------------------------------------------

void Negotiator::receive_from_parent(Reader& reader) {
  while (!reader.done()) {
    const DownRecord record = decode_down(reader);
    if (const auto* retracted = std::get_if<Retracted>(&record)) {
      apply(*retracted);  // meant for this position alone
    } else {
      down(record);
    }
  }
}

void Negotiator::receive_from_child(int neighbour, Reader& reader) {
  const auto found = std::find(position_.children.begin(), position_.children.end(), neighbour);
  if (found == position_.children.end()) {
    throw Error(ErrorCode::backend, fmt::format("control message from rank {}, which is no neighbour", neighbour));
  }
  const int child = static_cast<int>(found - position_.children.begin()) + 1;
  while (!reader.done()) {
    std::visit([&](const auto& record) { up(child, record); }, decode_up(reader));
  }
}

/// What only the root looks at goes on to it, unless this is the root.
bool Negotiator::handed_up(const UpRecord& record) {
  if (!position_.root()) encode(to_parent_, record);
  return !position_.root();
}

void Negotiator::up(int child, const Announcement& record) {
  table_.announce(child, record, plan_);
}

void Negotiator::up(int child, const Ready& record) {
  table_.ready(child, record, plan_);
}

void Negotiator::up(int, const SplitBucket& record) {
  if (handed_up(record)) return;
  const auto* members = plan_.members(record.bucket);
  if (!members) return;  // split already: who asked looks again when it learns so
  Replan split{{{}, {}}};
  for (TensorNumber number : *members) {
    const bool wanted = std::find(record.members.begin(), record.members.end(), number) != record.members.end();
    split.buckets[wanted ? 0 : 1].push_back(number);
  }
  if (!split.buckets[0].empty() && !split.buckets[1].empty()) down(split);
}

void Negotiator::up(int child, const Retract& record) {
  switch (table_.retract(child, record, plan_)) {
    case ReadyTable::Retraction::done: answer(child, record); break;
    case ReadyTable::Retraction::ignored: break;  // decided or void: the child learns that from the decisions
    case ReadyTable::Retraction::passed_on: {
      if (position_.root()) break;  // complete at the root is as good as decided
      pass_on();                    // what is taken back must have been announced before
      const std::string row = record.bucket ? table_.merged_into(*record.bucket) : record.name;
      encode(to_parent_, UpRecord(row.empty() ? record : Retract{std::nullopt, row}));
      break;
    }
  }
}

void Negotiator::up(int, const Left& record) {
  if (!handed_up(record)) down(record);
}

void Negotiator::up(int, const GroupFailed& record) {
  if (!handed_up(record)) down(record);
}

void Negotiator::up(int, const DeviceFault& record) {
  if (!handed_up(record) && record.number == faults_) down(record);
}

void Negotiator::up(int, const Waiting& record) {
  if (!handed_up(record)) wanted_.insert(record.name);
}

void Negotiator::up(int, const Joined& record) {
  if (!position_.root()) pass_on();  // the rank joined after what it had announced
  if (!handed_up(record)) down(record);
}

void Negotiator::up(int, const BarrierArrived& record) {
  if (handed_up(record)) return;
  if (const auto released = monitored_barrier_.came(record)) down(*released);
}

void Negotiator::up(int, const BarrierTimeout& record) {
  if (handed_up(record)) return;
  if (const auto released = monitored_barrier_.overdue(record)) down(*released);
}

}  // namespace kolo
