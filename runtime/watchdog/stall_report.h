#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include <kolo/config.h>

#include "runtime/operation/submission.h"
#include "runtime/types/rank_set.h"

namespace kolo {

/// Exit code of a job that is ended because something waited too long.
inline constexpr int stall_exit_code = 72;

inline double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// How often a watchdog looks: often enough for the shortest time in the settings, and at most once a second, so that
/// an idle rank stays idle.
std::chrono::steady_clock::duration watch_beat(const Config& config);

/// What a rank knows of the others' part in an operation that waits. Every other rank of the group is in one of the
/// first five.
struct Diagnosis {
  RankSet have;     ///< have submitted it
  RankSet missing;  ///< have not
  RankSet silent;   ///< give no sign of life, and had not submitted it as far as is known
  RankSet far;      ///< on other nodes: not known
  RankSet crowded;  ///< wait for so many older operations that this one may be missing from what they publish
  RankSet stopped;  ///< of `have`, those that give no sign of life
  bool agreed = false;

  /// Equal for operations that wait for the same ranks.
  std::string cause() const;
};

/// "all_reduce 'grad' in group world has waited for 10.2 s: submitted by ranks 0, 2; not submitted by rank 1 (host h,
/// pid 12, last completed 'loss'); and 3 more wait for the same ranks".
///
/// name    describes a rank that is named for a reason: "rank 1 (host h, pid 12, last completed 'loss')"
/// others  how many operations more wait for the same cause
std::string explain_stall(const Submission& submission, double waited, const Diagnosis& diagnosis, std::size_t others,
                          const std::function<std::string(int)>& name);

/// The ranks that have not come as far as making the session.
struct LateRanks {
  std::vector<std::string> missing;  ///< "rank 2 (host h, pid 12)"
  RankSet unknown;
};

/// "rank 0: making the session has waited for 10.2 s: not there yet: rank 2 (host h, pid 12); not known of rank 3".
std::string explain_opening(int rank, double waited, const LateRanks& late);

/// What follows a report when the time is up.
std::string ending_the_job(const Config& config);

}  // namespace kolo
