#include "bench/kolo_bench/measure/timing.h"

#include <algorithm>

namespace kolo::bench {
namespace {

double us_between(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double, std::micro>(end - begin).count();
}

constexpr int looks = 33;         // runs, in which a backend looks once where the tensors lie now
constexpr int most_trials = 128;  // runs: some of them wait for word of a trial
constexpr auto pauses_take = std::chrono::milliseconds(500);  // or so long: trials wait when others have cost much

/// One turn: up to `in_a_row` iterations.
void take_turn(const Ranks& ranks, Candidate& candidate, const Schedule& schedule, std::int64_t count,
               std::vector<double>& us) {
  ranks.barrier();
  auto last = Clock::now();
  for (std::int64_t i = 0; i < count; ++i) {
    if (schedule.isolated && i > 0) {
      ranks.barrier();
      last = Clock::now();
    }
    candidate.run();
    const auto now = Clock::now();
    us.push_back(us_between(last, now) / schedule.per_iteration);
    last = now;
  }
}

}  // namespace

void run_until_settled(const Ranks& ranks, Candidate& candidate) {
  const auto any = [&](bool here) { return ranks.sum(here ? 1 : 0) > 0; };
  if (!any(!candidate.method().empty())) return;  // there is one way only
  for (int runs = 0; runs < looks; ++runs) candidate.run();
  const auto until = Clock::now() + pauses_take;
  for (int runs = 0; any(candidate.method().starts_with("trial:") && (runs < most_trials || Clock::now() < until));
       ++runs)
    candidate.run();
}

Schedule schedule_for(const Options& options, std::int64_t bytes, bool alone) {
  Schedule schedule;
  schedule.iterations = options.iterations_for(bytes);
  schedule.warm_up = options.warm_up_for(bytes);
  schedule.in_a_row = alone ? schedule.iterations : bytes <= 64 << 10 ? 25 : bytes < 1 << 20 ? 5 : 1;
  schedule.isolated = options.isolated;
  schedule.combine = options.combine;
  schedule.per_iteration = options.lanes;
  return schedule;
}

std::vector<Series> measure(const Ranks& ranks, std::span<Candidate* const> candidates, const Schedule& schedule,
                            LastIteration* last) {
  for (Candidate* candidate : candidates) {
    for (std::int64_t i = 0; i < schedule.warm_up; ++i) candidate->run();
  }
  run_until_settled(ranks, *candidates.front());
  std::vector<std::vector<double>> us(candidates.size());
  for (auto& times : us) times.reserve(static_cast<std::size_t>(schedule.iterations));
  const std::int64_t in_turns = schedule.iterations - (last ? 1 : 0);
  for (std::int64_t done = 0; done < in_turns; done += schedule.in_a_row) {
    const std::int64_t count = std::min(schedule.in_a_row, in_turns - done);
    for (std::size_t i = 0; i < candidates.size(); ++i) take_turn(ranks, *candidates[i], schedule, count, us[i]);
  }
  for (std::size_t i = 0; last && i < candidates.size(); ++i) {
    if (i == 0) last->before();
    take_turn(ranks, *candidates[i], schedule, 1, us[i]);
    if (i == 0) last->after();
  }
  std::vector<Series> all;
  for (auto& times : us) all.push_back(combine(ranks, std::move(times), schedule.combine));
  return all;
}

Series combine(const Ranks& ranks, std::vector<double> us, Combine how) {
  Series series;
  const auto slowest = ranks.slowest(us);
  std::vector<std::int64_t> count(static_cast<std::size_t>(ranks.size()));
  for (const int rank : slowest) ++count[static_cast<std::size_t>(rank)];
  const auto most = std::ranges::max_element(count);
  series.slowest_rank = static_cast<int>(most - count.begin());
  series.slowest_share = us.empty() ? 0 : static_cast<double>(*most) / static_cast<double>(us.size());
  us.push_back(cli::percentiles(us).mean);  // combined as the iterations are
  switch (how) {
    case Combine::max: ranks.combine(us, MPI_MAX); break;
    case Combine::min: ranks.combine(us, MPI_MIN); break;
    case Combine::rank0:
      if (ranks.rank() > 0) std::ranges::fill(us, 0);
      ranks.combine(us, MPI_SUM);
      break;
    case Combine::average:
      ranks.combine(us, MPI_SUM);
      for (double& time : us) time /= ranks.size();
  }
  series.mean_of_total = us.back();
  us.pop_back();
  series.us = std::move(us);
  return series;
}

}  // namespace kolo::bench
