#include "runtime/watchdog/stall_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "runtime/control/status_board.h"
#include "runtime/operation/arguments.h"

namespace kolo {
namespace {

/// What is known of the first ones, and which others there are.
std::string each(const RankSet& ranks, const std::function<std::string(int)>& name) {
  constexpr int most_named = 8;
  std::vector<int> all = ranks.ranks();
  RankSet rest;
  for (; static_cast<int>(all.size()) > most_named; all.pop_back()) rest.add(all.back());
  std::vector<std::string> names;
  for (int rank : all) names.push_back(name(rank));
  return fmt::format("{}{}", fmt::join(names, ", "), rest.empty() ? "" : ", " + to_string(rest));
}

}  // namespace

std::chrono::steady_clock::duration watch_beat(const Config& config) {
  double beat = std::min(1.0, config.stall_report_seconds / 4);
  if (config.stall_abort_seconds > 0) beat = std::min(beat, config.stall_abort_seconds / 4);
  using Clock = std::chrono::steady_clock;
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(std::max(beat, 0.01)));
}

std::string Diagnosis::cause() const {
  RankSet waited_for = remote;
  waited_for.add(missing);
  return fmt::format("{} / {} / {} / {}", agreed, to_string(waited_for), to_string(silent), to_string(stopped));
}

std::string explain_stall(const InFlight& operation, double waited, const Diagnosis& diagnosis, std::size_t others,
                          const std::function<std::string(int)>& name) {
  const auto& [have, missing, silent, remote, crowded, stopped, agreed] = diagnosis;
  const auto what = describe(operation.kind, operation.name, operation.group->name);
  std::string line = fmt::format("{} has waited for {:.1f} s: submitted by {}", what, waited, to_string(have));
  if (!missing.empty()) line += "; not submitted by " + each(missing, name);
  if (!silent.empty()) line += "; not known of " + each(silent, name);
  if (!stopped.empty()) line += "; no word from " + each(stopped, name);
  if (!remote.empty()) line += fmt::format("; not known of {} (on other nodes)", to_string(remote));
  if (!crowded.empty()) {
    line +=
        fmt::format("; not known of {} ({} older operations wait there)", to_string(crowded), StatusBoard::max_waiting);
  }
  const bool all_have = missing.empty() && silent.empty() && remote.empty() && crowded.empty();
  if (all_have) line += agreed ? "; running" : "; not agreed yet";
  if (others > 0) {
    line +=
        fmt::format("; and {} more {}", others, all_have && stopped.empty() ? "like it" : "wait for the same ranks");
  }
  return line;
}

std::string explain_opening(int rank, double waited, const LateRanks& late) {
  std::vector<std::string> parts;
  if (!late.missing.empty()) parts.push_back(fmt::format("not there yet: {}", fmt::join(late.missing, ", ")));
  if (!late.unknown.empty()) parts.push_back("not known of " + to_string(late.unknown));
  if (parts.empty()) parts.push_back("all ranks are there");
  return fmt::format("rank {}: making the session has waited for {:.1f} s: {}", rank, waited, fmt::join(parts, "; "));
}

std::string ending_the_job(const Config& config) {
  return fmt::format("; ending the job (KOLO_STALL_ABORT_SECONDS={})", config.stall_abort_seconds);
}

}  // namespace kolo
