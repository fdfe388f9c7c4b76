#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <vector>

#include "apps/cli/statistics.h"
#include "bench/kolo_bench/measure/candidate.h"
#include "bench/kolo_bench/options.h"
#include "bench/kolo_bench/ranks.h"

namespace kolo::bench {

using Clock = std::chrono::steady_clock;

inline double us_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
}

/// How often and in which order candidates run.
struct Schedule {
  std::int64_t iterations = 20;
  std::int64_t warm_up = 2;
  std::int64_t in_a_row = 1;  ///< iterations of a candidate in one turn
  bool isolated = false;      ///< a barrier before each iteration, not only before each turn
  Combine combine = Combine::max;
  int per_iteration = 1;  ///< operations: times are those of one
};

/// The schedule that options ask for, for operations of that size.
Schedule schedule_for(const Options& options, std::int64_t bytes, bool alone);

/// The times of a candidate's iterations.
struct Series {
  std::vector<double> us;    ///< of each iteration, combined over the ranks
  double mean_of_total = 0;  ///< of all iterations together, by their number, then combined over the ranks
  int slowest_rank = 0;      ///< the one that was the slowest most often
  double slowest_share = 0;  ///< of the iterations
};

/// Runs a candidate on while it tries which way is fastest. Collective.
void run_until_settled(const Ranks& ranks, Candidate& candidate);

/// What is done before and after the first candidate's last iteration, outside of its time. Collective.
class LastIteration {
 public:
  virtual ~LastIteration() = default;
  virtual void before() = 0;
  virtual void after() = 0;
};

/// Runs the candidates in turn, until each has had its iterations. In a turn they follow each other without a pause
/// unless they are isolated; an iteration's time runs from the end of the one before to its own end, on each rank. With
/// `last` the last iteration is a turn of its own. Collective.
std::vector<Series> measure(const Ranks& ranks, std::span<Candidate* const> candidates, const Schedule& schedule,
                            LastIteration* last = nullptr);

/// Combines every rank's times of the iterations.
Series combine(const Ranks& ranks, std::vector<double> us, Combine how);

}  // namespace kolo::bench
