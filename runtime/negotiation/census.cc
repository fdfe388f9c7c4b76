#include "runtime/negotiation/census.h"

#include <fmt/format.h>

#include <utility>

#include "runtime/operation/arguments.h"

namespace kolo {
namespace {

constexpr int attempts_to_complete = 5;

}  // namespace

std::optional<WhoHas> Census::overdue(const Overdue& message) {
  news_ = true;
  const auto [found, is_new] = open_.try_emplace(message.name);
  Open& open = found->second;
  const bool outdated = message.attempt > 1 && !open.confirmed;
  if (!is_new && !outdated) {
    open.asked_again |= message.attempt > 1;
    if (message.rank == open.asked.rank) open.asked.attempt = message.attempt;
    return std::nullopt;
  }
  open = {message, ++questions_, {}, {}, {}};
  return WhoHas{message.name, open.question};
}

void Census::present(const Presence& message) {
  const auto found = open_.find(message.name);
  if (found == open_.end() || found->second.question != message.question) return;  // what was asked before is over
  Open& open = found->second;
  if (message.overdue && !message.here) {  // the ranks have agreed on it since it was asked for
    open.asked.running = true;
    open.here.add(std::exchange(open.missing, {}));
  }
  (message.here || open.asked.running ? open.here : open.missing).add(message.rank);
  if (!message.here && !message.last.empty())
    open.came_to += fmt::format("; {} has come to {}", to_string(RankSet{message.rank}), message.last);
  open.confirmed |= message.overdue;
  news_ = true;
}

RankSet Census::silent(const Open& open) const {
  RankSet ranks;
  for (int rank : membership_.group().ranks) ranks.add(rank);
  ranks.remove(open.here);
  ranks.remove(open.missing);
  ranks.remove(membership_.joined());
  return ranks;
}

std::vector<DownMessage> Census::take() {
  std::vector<DownMessage> decisions;
  news_ = false;
  for (auto next = open_.begin(); next != open_.end();) {
    const Open& open = next->second;
    const bool all_answered = silent(open).empty();
    if (!all_answered && !(open.confirmed && open.asked_again)) {
      ++next;
      continue;
    }
    const bool is_about_to_run = all_answered && open.missing.empty() && open.asked.attempt <= attempts_to_complete;
    if (open.confirmed && !is_about_to_run) decisions.push_back(failure(open));
    next = open_.erase(next);
  }
  return decisions;
}

/// What is agreed on cannot be taken back: then the group is of no more use.
DownMessage Census::failure(const Open& open) const {
  const Overdue& asked = open.asked;
  const RankSet no_answer = silent(open);
  std::string what;
  if (!open.missing.empty()) {
    what = fmt::format("not submitted by {}", to_string(open.missing));
  } else if (!no_answer.empty()) {
    what = fmt::format("no answer from {}", to_string(no_answer));
  } else {
    what = "not complete";
    if (!membership_.joined().empty()) what += fmt::format(" ({} joined)", to_string(membership_.joined()));
  }
  std::string text =
      fmt::format("{}: {} within {} s (rank {} has waited that long; {} {}",
                  describe(asked.kind, asked.name, membership_.group().name), what, asked.seconds, asked.rank,
                  asked.running ? "agreed on, and known to" : "submitted by", to_string(open.here));
  text += open.came_to;
  if (!open.missing.empty() && !no_answer.empty()) text += fmt::format("; no answer from {}", to_string(no_answer));
  Failure failure{ErrorCode::stalled, text + "); see what they do"};
  const bool ends_group = asked.kind == OpKind::open_group || membership_.group().order == Order::program;
  if (asked.running || ends_group) return GroupFailed{std::move(failure)};
  return Expired{asked.name, std::move(failure)};
}

}  // namespace kolo
