#pragma once

#include <deque>
#include <string>
#include <unordered_map>
#include <vector>

#include "runtime/operation/submission.h"

namespace kolo {

/// Submissions under names that may be in flight several times: one of each name is negotiated at a time, in the order
/// of submission.
class PairQueue {
 public:
  /// Whether the submission's turn is now; else it is kept.
  bool admit(const SubmissionPtr& submission) {
    const auto [place, first] = waiting_.try_emplace(submission->request.name());
    if (!first) place->second.push_back(submission);
    return first;
  }

  /// The one of this name whose turn it was is agreed, or gone: the next, if any.
  SubmissionPtr next(const std::string& name) {
    const auto place = waiting_.find(name);
    if (place == waiting_.end()) return nullptr;
    if (place->second.empty()) {
      waiting_.erase(place);
      return nullptr;
    }
    SubmissionPtr submission = std::move(place->second.front());
    place->second.pop_front();
    return submission;
  }

  /// Whether the submission was kept here, and is no longer.
  bool remove(const SubmissionPtr& submission) {
    const auto place = waiting_.find(submission->request.name());
    return place != waiting_.end() && std::erase(place->second, submission) > 0;
  }

  /// What is kept here.
  void add_to(std::vector<SubmissionPtr>& kept) const {
    for (const auto& [name, submissions] : waiting_) kept.insert(kept.end(), submissions.begin(), submissions.end());
  }

 private:
  std::unordered_map<std::string, std::deque<SubmissionPtr>>
      waiting_;  // an entry, maybe empty: one is being negotiated
};

}  // namespace kolo
