#include "tests/runtime/property/property_shared.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <thread>
#include <utility>

#include "runtime/types/rank_set.h"

namespace kolo::testing {
namespace {

ErrorCode code_of(Trouble trouble) {
  if (trouble == Trouble::late) return ErrorCode::stalled;
  if (trouble == Trouble::no_memory || trouble == Trouble::refuses) return ErrorCode::backend;
  return trouble >= Trouble::null_pointer ? ErrorCode::invalid_argument : ErrorCode::mismatch;
}

/// Of a rank that is late; or it gives no answer, if it stands still for long.
constexpr const char* not_submitted = "not submitted by rank";
constexpr const char* has_abandoned = "has abandoned it";
constexpr const char* another_ended = "another rank's program has ended";

/// "'t3'", and what else the text of an operation's error must say.
std::vector<std::string> words_of(const PropertyOp& op, const std::vector<int>& group) {
  const auto session_ranks = [&](auto&& counts) {
    RankSet ranks;
    for (int rank = 0; rank < op.ranks; ++rank) {
      if (counts(rank)) ranks.add(group[static_cast<std::size_t>(rank)]);
    }
    return to_string(ranks);
  };
  const std::string odd = session_ranks([&](int rank) { return op.is_odd(rank); });
  const std::string others = session_ranks([&](int rank) { return op.takes_part(rank) && !op.is_odd(rank); });
  const std::string name = op.name.empty() || op.call == Call::send_recv ? op.name : fmt::format("'{}'", op.name);
  switch (op.trouble) {
    case Trouble::late: return {matches_in_order(op.call) ? "" : name, not_submitted};
    case Trouble::joined_root: return {name, session_ranks([&](int rank) { return rank == op.root; }) + ", has joined"};
    case Trouble::joined_peer:
      return {name, session_ranks([&](int rank) {
                      return op.is_absent(rank) && (rank == op.root || rank == op.peer);
                    }) + " has joined"};
    case Trouble::no_memory: return {name, "on " + odd};
    case Trouble::refuses: return {name, odd + ": ", refusal_of(op).message};
    case Trouble::wrong_rows: return {name, odd + ": "};
    default: break;
  }
  if (op.in_order) return {"ranks called different operations ("};  // and two of them, as soon as they are known
  if (code_of(op.trouble) == ErrorCode::mismatch) return {name, odd + ": ", others + ": "};
  return {name, odd + ": "};
}

}  // namespace

SharedState::SharedState(const PropertyProgram& program, Checks checks, std::shared_ptr<Marks> marks)
    : program_(program), checks_(checks), marks_(std::move(marks)) {
  if (!program_.own_error.empty()) marks_->patience = 5;  // who has made the mark's group may be alone with that
}

void SharedState::problem(const std::string& text) {
  const std::lock_guard lock(mutex_);
  problems_.push_back(text);
}

std::vector<std::string> SharedState::problems() const {
  const std::lock_guard lock(mutex_);
  return problems_;
}

void SharedState::failed(const PropertyOp& op, int rank, const Error& error) {
  const std::lock_guard lock(mutex_);
  if (std::getenv("KOLO_TEST_SEED")) std::printf("%d on rank %d of the group: %s\n", op.id, rank, error.what());
  Errors& errors = errors_[op.id];
  errors.texts.insert(error.what());
  errors.codes.insert(error.code());
  errors.ranks.insert(rank);
}

void SharedState::joined(int step, int last) {
  const std::lock_guard lock(mutex_);
  joins_[step].push_back(last);
}

void SharedState::check() {
  if (checks_ == Checks::agreement) return check_agreement();
  for (std::size_t i = 0; i < program_.steps.size(); ++i) {
    const PropertyStep& step = program_.steps[i];
    for (const PropertyOp& op : step.ops) check(op);
    if (step.joined_group < 0) continue;
    const auto& last = joins_[static_cast<int>(i)];
    const bool same = last.size() == program_.groups[static_cast<std::size_t>(step.joined_group)].size() &&
                      std::all_of(last.begin(), last.end(), [&](int rank) { return rank == last.front(); });
    if (!same)
      problem(fmt::format("step {}: join() returned different ranks, or not to all", i));
    else if (std::find(step.may_be_last.begin(), step.may_be_last.end(), last.front()) == step.may_be_last.end())
      problem(fmt::format("step {}: join() returned {}, which joined before others", i, last.front()));
  }
}

/// Where something fails that the model does not know of: an operation's error is the same on all ranks.
void SharedState::check_agreement() {
  for (const PropertyStep& step : program_.steps) {
    for (const PropertyOp& op : step.ops) {
      const auto found = errors_.find(op.id);
      if (found == errors_.end()) continue;
      auto texts = found->second.texts;
      const auto taken = std::erase_if(texts, [&](const std::string& text) { return says_abandoned(op, text); });
      // Where the world has failed no barrier keeps a rank from abandoning a group in which operations still run.
      const bool may_be_early = !program_.own_error.empty() && is_abandoned(op.group);
      if (op.abandoned_by.empty() && taken > 0 && !may_be_early) problem(to_string(op) + ", failed with another group");
      if (op.call == Call::send_recv) continue;  // what a rank says of a peer that has joined is its own
      if (texts.size() > 1 && !program_.own_error.empty())
        std::erase_if(texts, [&](const std::string& text) { return text.find(program_.own_error) != text.npos; });
      // Where a rank stands still, a group that is open on the others and not yet there ends on that rank with the
      // world.
      if (texts.size() > 1 && op.group != 0)
        std::erase_if(texts,
                      [](const std::string& text) { return text.find("in group world: no answer") != text.npos; });
      if (texts.size() <= 1) continue;
      problem(to_string(op) + ": ranks were given different errors: " + *texts.begin() + " | " + *texts.rbegin());
    }
  }
}

/// Whether some rank abandons it at some time.
bool SharedState::is_abandoned(int group) const {
  return std::ranges::any_of(program_.steps, [&](const PropertyStep& step) {
    return std::ranges::any_of(step.ops,
                               [&](const PropertyOp& op) { return op.group == group && !op.abandoned_by.empty(); });
  });
}

/// Whether an error says that a rank has abandoned a group; of an operation of that group: which rank, and the group.
/// Of a send and its receive the one may have ended so, and its rank's program then, before the other rank hears of it.
bool SharedState::says_abandoned(const PropertyOp& op, const std::string& text) const {
  if (op.abandoned_by.empty()) return text.find(has_abandoned) != text.npos;
  const auto& ranks = program_.groups[static_cast<std::size_t>(op.group)];
  RankSet all;
  for (const int rank : ranks) all.add(rank);
  const auto says = [&](int rank, std::string_view what) {
    return text.find(fmt::format(": rank {} {}", ranks[static_cast<std::size_t>(rank)], what)) != text.npos;
  };
  const bool left =
      op.call == Call::send_recv && (says(op.root, "closed the session") || says(op.peer, "closed the session"));
  return text.find(fmt::format("group of {}", to_string(all))) != text.npos &&
         (left || std::ranges::any_of(op.abandoned_by, [&](int rank) { return says(rank, has_abandoned); }));
}

void SharedState::check(const PropertyOp& op) {
  const auto found = errors_.find(op.id);
  const std::string what = to_string(op);
  if (found == errors_.end()) {
    if (op.fails()) problem(what + ", ought to fail");
    return;
  }
  const auto& [texts, codes, ranks] = found->second;
  const std::string& text = *texts.begin();
  if (!op.abandoned_by.empty()) {
    for (const std::string& one : texts) {
      if (!says_abandoned(op, one)) problem(what + ", failed: " + one);
    }
    return;
  }
  if (!op.fails()) return problem(what + ", failed: " + text);
  if (texts.size() > 1) problem(what + ": ranks were given different errors: " + text + " | " + *texts.rbegin());
  if (codes != std::set{code_of(op.trouble)})
    problem(what + ": the error is " + std::string(to_string(*codes.begin())) + ": " + text);
  for (int rank = 0; rank < op.ranks; ++rank) {
    if (op.takes_part(rank) != ranks.contains(rank))
      problem(fmt::format("{}: rank {} of the group was {} an error: {}", what, rank,
                          ranks.contains(rank) ? "given" : "not given", text));
  }
  for (const std::string& word : words_of(op, program_.groups[static_cast<std::size_t>(op.group)])) {
    const bool stands_still = word == not_submitted && text.find("no answer from rank") != std::string::npos;
    if (text.find(word) == std::string::npos && !stands_still)
      problem(what + ": the error does not say \"" + word + "\": " + text);
  }
}

void SharedState::await(const PropertyOp& op) {
  const auto& reached = marks_->reached.at(static_cast<std::size_t>(op.id));
  const auto mine = program_.seed + 1;
  const auto start = std::chrono::steady_clock::now();
  for (int look = 0; reached != mine; ++look) {
    if (marks_->given_up == mine || std::chrono::steady_clock::now() - start > std::chrono::seconds(marks_->patience))
      throw std::runtime_error(another_ended);
    if (look < 20)
      std::this_thread::yield();
    else
      std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

void SharedState::give_up(const std::string& why) {
  if (program_.own_error.empty() || why.find(another_ended) == why.npos) problem(why);
  marks_->given_up = program_.seed + 1;
}

std::string SharedState::to_text() const {
  const std::lock_guard lock(mutex_);
  nlohmann::json errors = nlohmann::json::array();
  for (const auto& [op, of] : errors_) errors.push_back({op, of.texts, of.codes, of.ranks});
  return nlohmann::json{problems_, errors, joins_}.dump();
}

void SharedState::add(const std::string& text) {
  const auto other = nlohmann::json::parse(text);
  const std::lock_guard lock(mutex_);
  for (const auto& problem : other[0]) problems_.push_back(problem);
  for (const auto& one : other[1]) {
    Errors& errors = errors_[one[0]];
    for (const auto& text_of_error : one[1]) errors.texts.insert(text_of_error);
    for (const auto& code : one[2]) errors.codes.insert(code.get<ErrorCode>());
    for (const auto& rank : one[3]) errors.ranks.insert(rank.get<int>());
  }
  for (const auto& [step, last] : other[2].get<std::map<int, std::vector<int>>>())
    joins_[step].insert(joins_[step].end(), last.begin(), last.end());
}

}  // namespace kolo::testing
