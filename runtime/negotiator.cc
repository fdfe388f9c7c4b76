#include "runtime/negotiator.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/mismatch.h"

namespace kolo {

Negotiator::Negotiator(std::shared_ptr<const GroupInfo> group, TreePosition position, std::int64_t fusion_bytes)
    : group_(std::move(group)),
      position_(std::move(position)),
      learner_(fusion_bytes),
      table_(position_.subtrees),
      to_child_(position_.children.size()) {}

// ---- the local program ----------------------------------------------------------------------------------------------

void Negotiator::submit(const SubmissionPtr& submission) {
  if (over()) {
    decisions_.failed.push_back({submission, broken_ ? *broken_ : departure_failure(*submission)});
    return;
  }
  if (position_.root()) learner_.submitted(submission);
  if (const auto complete = local_.add(submission, plan_)) {
    up(0, Ready{*complete});
  } else if (!local_.numbered(*submission, plan_)) {
    ++full_announcements_;
    up(0, Announcement{submission->name, {{submission->signature, submission->failure, {position_.rank}}}});
  }
}

void Negotiator::flush(const SubmissionPtr& submission, std::uint64_t sequence) {
  if (position_.root()) learner_.waited();
  if (!local_.holds(*submission, plan_)) return;
  if (submission->flushed_at == 0) {
    submission->flushed_at = sequence;
    waited_for_.push_back(submission);
  }
  if (const auto cut = local_.cut_for(*submission, plan_)) up(0, *cut);
}

void Negotiator::withdraw(const SubmissionPtr& submission) {
  if (position_.root()) learner_.waited();
  if (!local_.holds(*submission, plan_)) return;  // agreed, or failed
  Retract what;
  if (local_.numbered(*submission, plan_)) {
    what.bucket = plan_.row(*plan_.find(submission->name, submission->signature)).bucket;
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
  const Departed record{position_.rank, abandoned};
  if (abandoned) {  // this rank hands nothing on from now on, so it tells both sides itself
    for (Writer& child : to_child_) encode(child, DownRecord(record));
  }
  up(0, record);
}

void Negotiator::break_down(const Failure& failure) { up(0, Broken{failure}); }

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

void Negotiator::up(int child, const Announcement& record) { table_.announce(child, record, plan_); }

void Negotiator::up(int child, const Ready& record) { table_.ready(child, record.bucket, plan_); }

void Negotiator::up(int, const Cut& record) {
  if (!position_.root()) {
    encode(to_parent_, UpRecord(record));
    return;
  }
  const auto* members = plan_.members(record.bucket);
  if (!members) return;  // split already: who asked looks again when it learns so
  Regroup split{{{}, {}}};
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

void Negotiator::up(int, const Departed& record) {
  if (position_.root()) {
    down(record);
  } else {
    encode(to_parent_, UpRecord(record));
  }
}

void Negotiator::up(int, const Broken& record) {
  if (position_.root()) {
    down(record);
  } else {
    encode(to_parent_, UpRecord(record));
  }
}

// ---- decisions ------------------------------------------------------------------------------------------------------

/// Turns what became complete into decisions (at the root) or announcements to the parent, until nothing is left: a decision
/// can complete something else.
void Negotiator::decide() {
  if (!position_.root()) {
    pass_on();
    return;
  }
  for (;;) {
    ReadyTable::News news = table_.take();
    if (over()) return;
    const auto retired = [&](BucketId bucket) { return !plan_.members(bucket); };  // meanwhile: announced anew, by all
    std::erase_if(news.ready, retired);
    if (!news.ready.empty()) down(Run{news.ready});
    for (const Announcement& announcement : news.announced) decide(announcement);
    for (const Cut& cut : news.cuts) up(0, cut);
    const auto change = learner_.propose(plan_);
    if (change) down(*change);
    if (!change && table_.quiet()) return;
  }
}

/// What became complete in this position's subtree, to the parent.
void Negotiator::pass_on() {
  const ReadyTable::News news = table_.take();
  if (over()) return;
  for (BucketId bucket : news.ready) encode(to_parent_, UpRecord(Ready{bucket}));
  for (const Announcement& announcement : news.announced) encode(to_parent_, UpRecord(announcement));
  for (const Cut& cut : news.cuts) encode(to_parent_, UpRecord(cut));
}

void Negotiator::decide(const Announcement& announcement) {
  if (announcement.variants.size() > 1 || announcement.variants.front().failure) {
    down(Reject{announcement.name, explain_rejection(announcement, group_->name)});
    return;
  }
  const Signature& signature = announcement.variants.front().signature;
  auto number = plan_.find(announcement.name, signature);
  if (!number) {
    down(Define{announcement.name, signature});
    number = plan_.find(announcement.name, signature);
    for (TensorNumber namesake : plan_.numbers(announcement.name)) {  // ambiguous from now on: see PlanCache::Row
      up(0, Cut{plan_.row(namesake).bucket, {namesake}});
    }
  }
  down(Run{{plan_.row(*number).bucket}});
}

void Negotiator::down(const DownRecord& record) {
  for (Writer& child : to_child_) encode(child, record);
  std::visit([&](const auto& decision) { apply(decision); }, record);
}

void Negotiator::apply(const Define& record) {
  table_.rejected(record.name);  // the announcement in full has served
  local_.defined(plan_.define(record.name, record.signature), plan_);
}

void Negotiator::apply(const Regroup& record) {
  const BucketId first_new = plan_.next_bucket();
  after_regroup(plan_.regroup(record), first_new);
}

void Negotiator::apply(const Run& record) {
  for (BucketId bucket : record.buckets) {
    auto members = local_.take(bucket, plan_);
    table_.ran(bucket, plan_);
    for (const SubmissionPtr& member : members) {
      member->agreed = true;
      std::erase(waited_for_, member);
      std::erase(withdrawing_, member);
    }
    decisions_.run.push_back(std::move(members));
    ++agreements_;
  }
}

void Negotiator::apply(const Reject& record) {
  table_.rejected(record.name);
  for (const SubmissionPtr& submission : local_.take(record.name, plan_)) {
    std::erase(waited_for_, submission);
    std::erase(withdrawing_, submission);
    decisions_.failed.push_back({submission, record.failure});
  }
  const BucketId first_new = plan_.next_bucket();
  after_regroup(plan_.isolate(record.name), first_new);
}

void Negotiator::apply(const Retracted& record) {
  for (const auto& [child, what] : table_.retracted(record.what, plan_)) answer(child, what);
}

void Negotiator::apply(const Departed& record) {
  if (departed_.empty()) first_departed_ = record.rank;  // the same on every rank, whoever follows
  departed_.add(record.rank);
  if (record.abandoned && record.rank != position_.rank) {
    abandoned_.add(record.rank);
    const Failure failure{ErrorCode::aborted,
                          fmt::format("group {}: rank {} left without finishing (an error ended its program); "
                                      "see what that rank printed",
                                      group_->name, record.rank)};
    if (!broken_) apply(Broken{failure});
    return;
  }
  for (const SubmissionPtr& submission : local_.take_all()) {
    decisions_.failed.push_back({submission, departure_failure(*submission)});
  }
  waited_for_.clear();
  withdrawing_.clear();
}

void Negotiator::apply(const Broken& record) {
  if (broken_) return;  // the first one decides, for those who submit later too
  broken_ = record.failure;
  decisions_.broken = record.failure;
  for (const SubmissionPtr& submission : local_.take_all()) decisions_.failed.push_back({submission, record.failure});
  waited_for_.clear();
  withdrawing_.clear();
}

// ---- consequences ---------------------------------------------------------------------------------------------------

/// What was announced of a retired bucket is void on every rank alike: each announces anew what is complete now.
void Negotiator::after_regroup(const std::vector<BucketId>& retired, BucketId first_new) {
  table_.retired(retired, plan_);
  const auto complete = local_.regrouped(retired, first_new, plan_);
  std::erase_if(withdrawing_, [&](const SubmissionPtr& submission) {
    if (!local_.numbered(*submission, plan_)) return false;
    if (plan_.row(*plan_.find(submission->name, submission->signature)).bucket < first_new) return false;
    local_.remove(*submission, plan_);
    std::erase(waited_for_, submission);
    decisions_.withdrawn.push_back(submission);
    return true;
  });
  for (BucketId bucket : complete) {
    if (local_.announced(bucket)) up(0, Ready{bucket});
  }
  for (const SubmissionPtr& submission : waited_for_) {
    if (const auto cut = local_.cut_for(*submission, plan_)) up(0, *cut);
  }
}

void Negotiator::answer(int child, const Retract& what) {
  if (child == 0) {
    withdrawn(what);
  } else {
    encode(to_child_[static_cast<std::size_t>(child - 1)], DownRecord(Retracted{what}));
  }
}

void Negotiator::withdrawn(const Retract& what) {
  std::erase_if(withdrawing_, [&](const SubmissionPtr& submission) {
    const bool numbered = local_.numbered(*submission, plan_);
    const bool meant = what.bucket ? numbered && plan_.row(*plan_.find(submission->name, submission->signature)).bucket ==
                                                     *what.bucket
                                   : !numbered && submission->name == what.name;
    if (!meant) return false;
    local_.remove(*submission, plan_);
    std::erase(waited_for_, submission);
    decisions_.withdrawn.push_back(submission);
    return true;
  });
}

Failure Negotiator::departure_failure(const Submission& submission) const {
  return {ErrorCode::closed,
          fmt::format("{}: {} closed the session (the operation needs every rank of the group); close sessions when all ranks "
                      "are done",
                      describe(submission.signature.kind, submission.name, group_->name), to_string(RankSet{first_departed_}))};
}

}  // namespace kolo
