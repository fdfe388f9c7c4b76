#include "ops/shm/chooser.h"

#include <algorithm>
#include <array>
#include <limits>

namespace kolo {
namespace {

constexpr int most_rounds = 5, rounds_of_large = 3;  // from 64 MiB on chance changes little, and trials take long
constexpr std::array<float, most_rounds> tolerated{3.0F, 1.5F, 1.25F, 1.15F, 1};  // times the fastest, after each round
constexpr float clearly_faster = 0.97F;  // of the time of what was tried first, so that chance changes nothing
// The same where the peer's memory is mapped and nothing needs to be copied: as a rule the fastest way, also beside a
// program that computes meanwhile, where trials take by chance what they take.
constexpr float faster_than_mapped = 0.85F;
// The same of messages. Two ranks that send each other something choose by themselves, and lose much where one goes by
// the ring and the other is read; what one way costs also depends on what the other rank tries, so hardly any is
// dropped early, and the least counts. The first that goes by the large ring takes its memory: none is dropped after
// one.
constexpr float message_faster = 0.8F;

// Of the jobs' time. Trials may have this much of so many jobs before these have come.
constexpr float share_of_trials = 0.03F;
constexpr std::int64_t least_jobs = 200;

/// Seconds that the first trial of a way is taken to cost: calls of the system, and another copy.
float cost_of_first(const ShmClass& of) {
  return 20e-6F + 0.1e-9F * static_cast<float>(std::int64_t{1} << (of.size_bits - 1));
}

/// Of none: for ever.
float fastest(const std::vector<float>& seconds) {
  return seconds.empty() ? std::numeric_limits<float>::max() : *std::ranges::min_element(seconds);
}

float median(std::vector<float> seconds) {
  const auto middle = seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2);
  std::ranges::nth_element(seconds, middle);
  return *middle;
}

struct Name {
  ShmChoice choice;
  const char* text;
  const char* trial;
};
constexpr std::array<Name, 7> names{{{{ShmWay::ring, 256 << 10}, "ring-256K", "trial:ring-256K"},
                                     {{ShmWay::ring, 64 << 10}, "ring-64K", "trial:ring-64K"},
                                     {{ShmWay::read, 256 << 10}, "read-256K", "trial:read-256K"},
                                     {{ShmWay::read, 64 << 10}, "read-64K", "trial:read-64K"},
                                     {{ShmWay::ring, 0}, "ring", "trial:ring"},
                                     {{ShmWay::read, 0}, "read", "trial:read"},
                                     {{ShmWay::mapped, 0}, "mapped", "trial:mapped"}}};

}  // namespace

const char* text_of(const ShmChoice& choice, bool trial) {
  const auto found = std::ranges::find_if(names, [&](const Name& name) {
    return name.choice.way == choice.way && (name.choice.bytes == choice.bytes || name.choice.bytes == 0);
  });
  return trial ? found->trial : found->text;
}

ShmChooser::ShmChooser(std::int64_t ring, int ranks, std::shared_ptr<const ShmKnown> known) : ring_(ring) {
  if (!known) return;
  forced_ = known->forced;
  pauses_ = !known->measures;
  const auto table = known->tables.find(ranks);
  if (table != known->tables.end() && !known->measures) known_ = {std::move(known), &table->second};
}

/// The first is what is used while nothing is known.
std::vector<ShmChoice> ShmChooser::candidates(const ShmClass& of, ShmPlace place) const {
  const std::int64_t small = ring_ / 4;
  const ShmChoice ring{ShmWay::ring, ring_}, mapped{ShmWay::mapped, small}, read{ShmWay::read, small};
  const bool can_map = place.reach == ShmReach::mapped, can_read = place.reach != ShmReach::none;
  if (forced_ == ShmWay::mapped && can_map) return {mapped};
  if (forced_ == ShmWay::read && can_read) return {read};
  if (forced_) return {ring};
  if (can_map) return {mapped, ring};
  if (of.kind == OpKind::send_recv)
    return can_read ? std::vector<ShmChoice>{{ShmWay::read, ring_}, ring} : std::vector{ring};
  std::vector<ShmChoice> all{ring};
  if (std::int64_t{1} << of.size_bits > small) all.push_back({ShmWay::ring, small});
  if (!can_read) return all;
  all.push_back(read);
  if (std::int64_t{1} << of.size_bits > small) all.push_back({ShmWay::read, ring_});
  return all;
}

ShmChooser::Contest& ShmChooser::contest(const ShmClass& of, Class& one, ShmPlace place) const {
  const auto [found, made] = one.contests.try_emplace(place);
  Contest& contest = found->second;
  if (!made) return contest;
  for (const ShmChoice& choice : candidates(of, place)) contest.left.push_back({choice, {}});
  if (!known_ || forced_) return contest;
  const auto row = known_->find({of, place});
  if (row == known_->end()) return contest;
  const auto same = std::ranges::find(contest.left, row->second, &Candidate::choice);
  if (same != contest.left.end()) contest.left = {Candidate(*same)};
  return contest;
}

bool ShmChooser::asks(const ShmClass& of) {
  if (forced_ == ShmWay::ring) return false;
  Class& one = classes_[of];
  one.since_asked = (one.since_asked + 1) % one.period;
  if (!one.last) return true;
  if (one.leads_in) return false;
  const Contest& last = contest(of, one, *one.last);
  const bool looks = !last.settled() && !pauses(of, last);
  return looks || last.best().choice.way != ShmWay::ring || one.since_asked == 0;
}

ShmChooser::Answer ShmChooser::unasked(const ShmClass& of) {
  const auto found = classes_.find(of);
  if (found == classes_.end() || !found->second.last) return {{ShmWay::ring, ring_}};
  Class& one = found->second;
  Contest& last = one.contests.at(*one.last);
  ++last.jobs;
  if (std::exchange(one.leads_in, false)) return begin_trial(one, last);
  const ShmChoice& best = last.best().choice;
  return {best.way == ShmWay::ring ? best : ShmChoice{ShmWay::ring, ring_}, 0, last.settled()};
}

ShmChooser::Period ShmChooser::last_trial(const ShmClass& of) const {
  const auto found = classes_.find(of);
  return found == classes_.end() ? Period{} : found->second.trial;
}

ShmChooser::Answer ShmChooser::begin_trial(Class& one, const Contest& contest) {
  one.trial_place = one.last;
  one.trial = {};
  return {contest.left[contest.next].choice, ++one.trials, false};
}

const ShmChooser::Candidate& ShmChooser::Contest::best() const {
  return *std::ranges::min_element(left, {}, [](const Candidate& one) { return fastest(one.seconds); });
}

/// A job goes by the ring before each trial of it.
float ShmChooser::Contest::cost(const Candidate& one, std::size_t trials) const {
  if (one.seconds.empty()) return 0;
  const bool leads_in = one.choice.way == ShmWay::ring && best().choice.way != ShmWay::ring;
  return static_cast<float>(leads_in ? 2 * trials : trials) * (fastest(one.seconds) - fastest(best().seconds));
}

bool ShmChooser::pauses(const ShmClass& of, const Contest& contest) const {
  if (!pauses_ || of.kind == OpKind::send_recv) return false;  // two that send each other something try together
  if (contest.best().seconds.empty()) return false;
  const Candidate& next = contest.left[contest.next];
  float lost = contest.lost + (next.seconds.empty() ? cost_of_first(of) : contest.cost(next, 1));
  for (const Candidate& one : contest.left) lost += contest.cost(one, one.seconds.size());
  const auto jobs = static_cast<float>(std::max(contest.jobs, least_jobs));
  return lost > share_of_trials * jobs * fastest(contest.best().seconds);
}

/// The time of the trial that comes next in the contest; at the end of a round the slow ones are dropped.
void ShmChooser::take(Contest& contest, const ShmClass& of, float seconds) {
  const bool messages = of.kind == OpKind::send_recv;
  const int rounds = of.size_bits > 26 ? rounds_of_large : most_rounds;
  auto& left = contest.left;
  left[contest.next++].seconds.push_back(seconds);
  if (contest.next < left.size()) return;
  contest.next = 0;
  const float limit = messages ? tolerated.front() : tolerated[static_cast<std::size_t>(contest.rounds)];
  ++contest.rounds;
  if (contest.rounds < rounds) {
    if (messages && contest.rounds == 1) return;
    const float most = limit * fastest(contest.best().seconds);
    const auto slow = [&](const Candidate& one) { return fastest(one.seconds) > most; };
    for (const Candidate& one : left) contest.lost += slow(one) ? contest.cost(one, one.seconds.size()) : 0;
    std::erase_if(left, slow);
    return;
  }
  const auto time_of = [&](const Candidate& one) { return messages ? fastest(one.seconds) : median(one.seconds); };
  const float than_first = messages                                    ? message_faster
                           : left.front().choice.way == ShmWay::mapped ? faster_than_mapped
                                                                       : clearly_faster;
  auto winner = left.begin();
  for (auto one = left.begin() + 1; one != left.end(); ++one) {
    if (time_of(*one) < (winner > left.begin() ? 1 : than_first) * time_of(*winner)) winner = one;
  }
  left = {Candidate(*winner)};
}

ShmChooser::Answer ShmChooser::answer(const ShmClass& of, const Said& all) {
  Class& one = classes_[of];
  const bool moved = std::exchange(one.last, all.place) != all.place;
  if (one.trial_place && all.trial.complete()) {
    const std::chrono::duration<float> took = all.trial.ended - all.trial.begun;
    take(contest(of, one, *one.trial_place), of, took.count());
    one.trial_place.reset();
    one.trial = {};
  }
  Contest& now = contest(of, one, all.place);
  ++now.jobs;
  one.period = moved || !now.settled() ? least_period : std::min(2 * one.period, largest_period);
  if (now.settled() || one.trial_place || !std::exchange(now.begun, true))
    return {now.left.front().choice, 0, now.settled()};
  if (pauses(of, now)) return {now.best().choice, 0, false};
  // Messages do not ask.
  one.leads_in = now.left[now.next].choice.way == ShmWay::ring && of.kind != OpKind::send_recv;
  if (!one.leads_in) return begin_trial(one, now);
  const ShmChoice& best = now.left.front().choice;
  return {best.way == ShmWay::ring ? best : now.left[now.next].choice, 0, false};
}

void ShmChooser::complete(const ShmClass& of, std::uint64_t trial, const Period& period) {
  Class& one = classes_[of];
  if (one.trial_place && trial == one.trials) one.trial = period;
}

ShmTable ShmChooser::findings() const {
  ShmTable found;
  for (const auto& [of, one] : classes_) {
    for (const auto& [place, contest] : one.contests) {
      if (contest.settled() && contest.rounds > 0) found[{of, place}] = contest.left.front().choice;
    }
  }
  return found;
}

}  // namespace kolo
