#include "runtime/negotiation/fusion_tuner.h"

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>

namespace kolo {
namespace {

struct Round {
  int steps;         // of each turn that count
  std::size_t keep;  // candidates, at most; in the first round beside the first one
  double tolerance;  // how much slower than the best they may be
};

constexpr std::array<Round, 3> rounds{{{3, 2, 1.2}, {3, 2, 1.1}, {5, 1, 1}}};
constexpr double first_is_favoured = 0.99;

}  // namespace

double FusionTuner::Candidate::score() const {
  const double favour = first ? first_is_favoured : 1;
  if (durations.empty()) return std::numeric_limits<double>::max() * favour;
  std::vector<Duration> sorted = durations;
  std::ranges::sort(sorted);
  sorted.resize(std::max<std::size_t>(sorted.size() / 2, 1));
  const Duration sum = std::accumulate(sorted.begin(), sorted.end(), Duration::zero());
  return static_cast<double>(sum.count()) / static_cast<double>(sorted.size()) * favour;
}

FusionTuner::FusionTuner(std::span<const std::int64_t> settings) {
  for (const std::int64_t setting : settings) candidates_.push_back({.setting = setting, .durations = {}});
  candidates_.front().first = true;
  begin_turn(false);
}

void FusionTuner::begin_turn(bool goes_on) {
  const bool last = turn_ + 1 == candidates_.size();  // it is judged before its last step has ended
  candidates_[turn_].to_skip = goes_on ? 0 : 1;
  left_ = candidates_[turn_].to_skip + rounds[round_].steps + (last ? 1 : 0) - (goes_on ? 1 : 0);
}

void FusionTuner::took(std::int64_t setting, Duration duration) {
  const auto found = std::ranges::find(candidates_, setting, &Candidate::setting);
  if (found == candidates_.end() || found->to_skip-- > 0) return;
  found->to_skip = 0;
  found->durations.push_back(duration);
}

std::int64_t FusionTuner::next() {
  if (settled()) return candidates_.front().setting;
  if (left_-- == 0) {
    const std::int64_t in_use = candidates_[turn_].setting;
    if (++turn_ == candidates_.size()) judge(in_use);
    begin_turn(candidates_[turn_].setting == in_use);
    --left_;
  }
  return candidates_[turn_].setting;
}

/// The one whose turn was the last is the first of the next round, so that a round begins without a change.
void FusionTuner::judge(std::int64_t in_use) {
  const Round& round = rounds[round_];
  std::stable_sort(candidates_.begin(), candidates_.end(),
                   [](const Candidate& a, const Candidate& b) { return a.score() < b.score(); });
  const double most = candidates_.front().score() * round.tolerance;
  std::size_t others = 0;
  std::erase_if(candidates_, [&](const Candidate& candidate) {
    const bool stays = (round_ == 0 && candidate.first) || (others < round.keep && candidate.score() <= most);
    others += round_ == 0 && candidate.first ? 0 : 1;
    return !stays;
  });
  std::stable_partition(candidates_.begin(), candidates_.end(),
                        [&](const Candidate& one) { return one.setting == in_use; });
  for (Candidate& candidate : candidates_) candidate.durations.clear();
  turn_ = 0;
  if (!settled()) ++round_;
}

std::vector<std::int64_t> fusion_candidates(std::int64_t fusion_bytes) {
  std::vector<std::int64_t> settings;
  for (; fusion_bytes > 0 && settings.size() < 5; fusion_bytes /= 4) settings.push_back(fusion_bytes);
  return settings;
}

}  // namespace kolo
