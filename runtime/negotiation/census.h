#pragma once

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/negotiation/membership.h"
#include "runtime/negotiation/messages.h"
#include "runtime/operation/submission.h"

namespace kolo {

/// At the root of a group's tree: who has submitted the operations whose deadline has passed on some rank. Pure state.
///
/// A rank whose operation is overdue says so, again and again. All ranks are asked, and when all have answered, or when
/// the rank says so again, the operation fails with the names of those that are missing or do not answer. What all have
/// submitted gets the time of a few attempts to complete.
class Census {
 public:
  explicit Census(const Membership& membership) : membership_(membership) {}

  /// Returns what all ranks are to be asked, if they have not been.
  std::optional<WhoHas> overdue(const Overdue& message);
  void present(const Presence& message);
  /// The ranks have agreed on something about this name: it is not overdue any more.
  void close(const std::string& name) { open_.erase(name); }

  bool empty() const { return open_.empty(); }
  /// Whether take() may have something to give.
  bool has_news() const { return news_; }
  /// The decisions that follow from the answers.
  std::vector<DownMessage> take();

 private:
  struct Open {
    Overdue asked;
    std::uint64_t question = 0;
    RankSet here, missing;
    std::string came_to;     // the missing ones, where operations are matched by their order
    bool confirmed = false;  // the rank that asked waits still, after everything that was decided before
    bool asked_again = false;
  };

  RankSet silent(const Open& open) const;
  DownMessage failure(const Open& open) const;

  const Membership& membership_;
  std::map<std::string, Open> open_;  // by name
  std::uint64_t questions_ = 0;       // so far
  bool news_ = false;
};

/// On one rank: which of its operations are overdue, and which operations that it has not submitted the others have
/// given up.
class LateOperations {
 public:
  void overdue(const SubmissionPtr& submission) {
    std::erase_if(overdue_, [](const SubmissionPtr& other) { return other->completion.done.is_set(); });
    overdue_.push_back(submission);
  }

  /// Whether an operation of this name is overdue, and either `here`, waiting for the other ranks, or running.
  bool is_overdue(const std::string& name, const SubmissionPtr& here) const {
    return std::ranges::any_of(overdue_, [&](const SubmissionPtr& submission) {
      return submission->request.name() == name &&
             (submission == here || (submission->pending.agreed && !submission->completion.done));
    });
  }

  /// This rank's next operation of this name fails.
  void fail_next(const std::string& name, const Failure& failure) { failures_[name].push_back(failure); }

  /// How an operation fails that is late, if it is.
  std::optional<Failure> take_failure(const std::string& name) {
    if (failures_.empty()) return std::nullopt;
    const auto found = failures_.find(name);
    if (found == failures_.end()) return std::nullopt;
    const Failure failure = std::move(found->second.front());
    found->second.pop_front();
    if (found->second.empty()) failures_.erase(found);
    return failure;
  }

  /// The rank has joined: it will not submit these any more. Adds their names.
  void pass_over(std::vector<std::string>& names) {
    for (const auto& [name, failures] : std::exchange(failures_, {})) names.insert(names.end(), failures.size(), name);
  }

 private:
  std::vector<SubmissionPtr> overdue_;                   // of those in flight
  std::map<std::string, std::deque<Failure>> failures_;  // of what is still to come
};

}  // namespace kolo
