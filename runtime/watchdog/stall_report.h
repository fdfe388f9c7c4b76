#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <kolo/config.h>
#include <kolo/group.h>
#include <kolo/op.h>

#include "runtime/types/rank_set.h"

namespace kolo {

/// Exit code of a job that the watchdog ends.
inline constexpr int stall_exit_code = 72;

inline double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// An operation that this rank has submitted and that is not complete.
struct InFlight {
  OpKind kind{};
  std::string name;
  std::shared_ptr<const GroupInfo> group;
  std::uint64_t occurrence = 0;  ///< how many operations of this name and group came before; equal on every rank
  std::uint64_t sequence = 0;    ///< its position among this rank's submissions
  std::chrono::steady_clock::time_point since;
  bool agreed = false;  ///< the ranks have decided to run it
};

/// The watchdog's period: a quarter of the shortest time in the settings, and at most a second.
std::chrono::steady_clock::duration watch_beat(const Config& config);

/// What this rank knows of the other members' part in a stalled operation. Each of them is in one of the first five
/// sets.
struct Diagnosis {
  RankSet have;     ///< have submitted it
  RankSet missing;  ///< have not
  RankSet silent;   ///< had not when their watchdog last spoke, but that may be before this rank submitted it
  RankSet remote;   ///< on other nodes: unknown
  RankSet crowded;  ///< their entry on the status board is full of older operations: unknown
  RankSet stopped;  ///< members of `have` whose watchdog is silent
  bool agreed = false;

  /// Equal for operations that wait for the same ranks.
  std::string cause() const;
};

/// "all_reduce 'grad' in group world has waited for 10.2 s: submitted by ranks 0, 2; not submitted by rank 1 (host h,
/// pid 12, last completed 'loss'); and 3 more wait for the same ranks".
///
/// name    describes one rank: "rank 1 (host h, pid 12, last completed 'loss')"
/// others  how many more operations wait for the same cause
std::string explain_stall(const InFlight& operation, double waited, const Diagnosis& diagnosis, std::size_t others,
                          const std::function<std::string(int)>& name);

/// The ranks that have not reached the creation of the session.
struct LateRanks {
  std::vector<std::string> missing;  ///< "rank 2 (host h, pid 12)"
  RankSet unknown;
};

/// "rank 0: making the session has waited for 10.2 s: not there yet: rank 2 (host h, pid 12); not known of rank 3".
std::string explain_opening(int rank, double waited, const LateRanks& late);

/// The settings of a watchdog that may end the job, or may not.
inline Config settings_of_watch(Config config, bool may_end_job) {
  if (!may_end_job) config.stall_abort_seconds = 0;
  return config;
}

/// What a report ends with when the job is aborted.
std::string ending_the_job(const Config& config);

}  // namespace kolo
