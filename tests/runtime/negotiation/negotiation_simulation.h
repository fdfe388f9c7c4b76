#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <ranges>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "runtime/negotiation/negotiator.h"

namespace kolo::testing {

/// What one rank's program does next.
struct Action {
  enum class What { submit, wait, poll, withdraw_and_resubmit };
  What what = What::submit;
  std::string name;
  Signature signature;
  bool fails = false;  ///< by a bad argument, here
};

inline Signature sum_of(std::int64_t elements, DType dtype = DType::f32) {
  return {.dtype = dtype, .shape = Shape{elements}};
}
inline Signature sum_on_gpu(std::int64_t elements) {
  return {.device = DeviceKind::cuda, .shape = Shape{elements}};
}

/// Negotiators of all ranks in one thread, with messages that arrive in order on each edge but otherwise whenever the
/// random scheduler likes. Operations complete as soon as they are agreed. Every message goes through its bytes.
class Simulation {
 public:
  /// By name, in order: "ran", or the error.
  using Outcomes = std::map<std::string, std::vector<std::string>>;

  Simulation(Topology topology, std::int64_t fusion_bytes, std::uint64_t seed, std::size_t room = 8192,
             bool tunes_fusion = false)
      : random_(seed), chance_of_time_(seed), topology_(std::move(topology)) {
    std::vector<int> everybody(static_cast<std::size_t>(topology_.size()));
    std::iota(everybody.begin(), everybody.end(), 0);
    auto group = std::make_shared<GroupInfo>();  // of all: negotiation does not ask whose it is
    group->name = "world";
    group->ranks = everybody;
    group->rank = -1;
    for (int rank : everybody) {
      ranks_.push_back(
          std::make_unique<Rank>(group, tree_position(topology_, everybody, rank), fusion_bytes, room, tunes_fusion));
    }
  }

  void add(int rank, Action action) { ranks_[static_cast<std::size_t>(rank)]->program.push_back(std::move(action)); }
  void add_everywhere(const Action& action) {
    for (auto& rank : ranks_) rank->program.push_back(action);
  }

  /// Runs all programs to their ends; false if they get stuck first.
  bool run() {
    places_.resize(ranks_.size(), not_able);
    for (int rank = 0; rank < size(); ++rank) look_at(rank);
    for (;;) {
      const bool held = ranks_.front()->negotiator.holds_up_others();  // rank 0 is the root
      const auto others = busy_.size() + able_.size() + unsettled_.size();
      const auto choices = others + (held && (ends_runs_early || others == 0) ? 1 : 0);
      if (choices == 0) return finished();
      auto choice = std::uniform_int_distribution<std::size_t>(0, choices - 1)(random_);
      if (choice < busy_.size()) {
        deliver(*std::next(busy_.begin(), static_cast<std::ptrdiff_t>(choice)));
        continue;
      }
      choice -= busy_.size();
      if (choice == able_.size() + unsettled_.size()) {
        ranks_.front()->negotiator.end_run();
        unsettled_.insert(0);
      } else {
        const int rank = choice < able_.size()
                             ? able_[choice]
                             : *std::next(unsettled_.begin(), static_cast<std::ptrdiff_t>(choice - able_.size()));
        choice < able_.size() ? act(rank) : settle(rank);
        look_at(rank);
      }
    }
  }

  /// The same in rounds, in each of which every rank does what it can and every message travels over one edge. Returns
  /// how many that took, or nothing if the programs get stuck.
  std::optional<int> run_in_rounds() {
    for (int rounds = 0;; ++rounds) {
      for (int rank = 0; rank < size(); ++rank) {
        while (can_act(rank)) act(rank);
      }
      for (const int rank : std::exchange(unsettled_, {})) settle(rank);
      if (busy_.empty() && unsettled_.empty()) {
        if (finished()) return rounds;
        const auto able = std::ranges::any_of(std::views::iota(0, size()), [&](int rank) { return can_act(rank); });
        const bool held = ranks_.front()->negotiator.holds_up_others();
        if (!able && !held) return std::nullopt;
        if (!able) {
          ranks_.front()->negotiator.end_run();
          unsettled_.insert(0);
        }
      }
      for (const auto& edge : std::set(busy_)) {
        for (auto count = wires_[edge].size(); count > 0; --count) deliver(edge);
      }
    }
  }

  std::function<void(std::vector<std::byte>&)> tamper;  ///< changes what is delivered
  bool ends_runs_early =
      false;  ///< the root's runs end at any time while others wait, not only when nothing else can happen

  int size() const { return topology_.size(); }
  const std::vector<std::vector<std::string>>& buckets(int rank) const { return at(rank).buckets; }
  const Outcomes& outcomes(int rank) const { return at(rank).outcomes; }
  const Negotiator& negotiator(int rank) const { return at(rank).negotiator; }
  std::uint64_t messages(int rank) const { return at(rank).messages; }
  std::uint64_t bytes(int rank) const { return at(rank).bytes; }
  void reset_counts() {
    for (auto& rank : ranks_) rank->messages = rank->bytes = 0;
  }
  std::string stuck() const {
    std::string text;
    for (int rank = 0; rank < size(); ++rank) {
      if (at(rank).next < at(rank).program.size()) {
        text += "rank " + std::to_string(rank) + " at '" + at(rank).program[at(rank).next].name + "'; ";
      }
    }
    return text;
  }

 private:
  struct Rank {
    Rank(std::shared_ptr<const GroupInfo> info, TreePosition position, std::int64_t fusion_bytes, std::size_t room,
         bool tunes_fusion)
        : group(info), negotiator(info, std::move(position), fusion_bytes, room, tunes_fusion) {}
    std::shared_ptr<const GroupInfo> group;
    Negotiator negotiator;
    std::vector<Action> program;
    std::size_t next = 0;
    bool asked = false;  // the action at `next` has been handed over; it waits to complete
    std::uint64_t sequence = 0;
    std::map<std::string, SubmissionPtr> latest;
    std::vector<std::vector<std::string>> buckets;
    Outcomes outcomes;
    std::uint64_t messages = 0, bytes = 0;
  };

  const Rank& at(int rank) const { return *ranks_[static_cast<std::size_t>(rank)]; }
  bool finished() const {
    for (const auto& rank : ranks_) {
      if (rank->next < rank->program.size()) return false;
    }
    return true;
  }

  bool can_act(int index) const {
    const Rank& rank = at(index);
    return rank.next < rank.program.size() &&
           !(rank.asked && !rank.latest.at(rank.program[rank.next].name)->completion.done);
  }

  /// Keeps able_ up to date, after something has happened to a rank.
  void look_at(int rank) {
    std::size_t& place = places_[static_cast<std::size_t>(rank)];
    if (can_act(rank) == (place != not_able)) return;
    if (place == not_able) {
      place = able_.size();
      able_.push_back(rank);
      return;
    }
    places_[static_cast<std::size_t>(able_.back())] = place;
    able_[place] = able_.back();
    able_.pop_back();
    place = not_able;
  }

  void submit(Rank& rank, const Action& action) {
    Request request;
    request.text = action.name;
    request.group = rank.group;
    request.signature = action.signature;
    request.submitted = now_ += std::chrono::microseconds(chance_of_time_() % 1000);
    if (action.fails) request.invalid = Failure{ErrorCode::invalid_argument, "a bad argument"};
    request.tensors.push_back({{nullptr, action.signature.shape, action.signature.dtype, {}}, {}});
    auto submission = std::make_shared<Submission>(std::move(request));
    submission->queued.sequence = ++rank.sequence;
    rank.latest[action.name] = submission;
    rank.negotiator.submit(submission);
  }

  void act(int index) {
    Rank& rank = *ranks_[static_cast<std::size_t>(index)];
    const Action& action = rank.program[rank.next];
    const auto look = [&] {
      if (rank.asked) return;
      rank.negotiator.fence();
      rank.negotiator.look(rank.latest.at(action.name), ++rank.sequence);
    };
    switch (action.what) {
      case Action::What::submit:
        submit(rank, action);
        ++rank.next;
        break;
      case Action::What::poll:
        look();
        ++rank.next;
        break;
      case Action::What::wait:
        look();
        rank.asked = !rank.latest.at(action.name)->completion.done;
        if (!rank.asked) ++rank.next;
        break;
      case Action::What::withdraw_and_resubmit: {
        const SubmissionPtr submission = rank.latest.at(action.name);
        if (!rank.asked) rank.negotiator.withdraw(submission);
        look();
        rank.asked = !submission->completion.done;
        if (rank.asked) break;
        if (!submission->pending.agreed && !submission->completion.failure) submit(rank, action);
        ++rank.next;
        break;
      }
    }
    unsettled_.insert(index);  // several actions may go out together
  }

  void deliver(std::pair<int, int> edge) {
    auto& queue = wires_[edge];
    auto [direction, bytes] = std::move(queue.front());
    queue.pop_front();
    if (tamper) tamper(bytes);
    if (queue.empty()) busy_.erase(edge);
    Reader reader(bytes);
    Negotiator& negotiator = ranks_[static_cast<std::size_t>(edge.second)]->negotiator;
    if (direction == Direction::to_parent) {
      negotiator.receive_from_child(edge.first, reader);
    } else {
      negotiator.receive_from_parent(reader);
    }
    unsettled_.insert(edge.second);
  }

  void settle(int index) {
    unsettled_.erase(index);
    Rank& rank = *ranks_[static_cast<std::size_t>(index)];
    rank.negotiator.decide();
    rank.negotiator.send([&](int to, Direction direction, std::span<const std::byte> bytes) {
      wires_[{index, to}].push_back({direction, {bytes.begin(), bytes.end()}});
      busy_.insert({index, to});
      ++rank.messages;
      rank.bytes += bytes.size();
    });
    const Decisions decisions = rank.negotiator.take();
    for (const auto& next : decisions.run) {
      rank.buckets.emplace_back();
      for (const auto& member : std::get<AgreedBucket>(next).members) {
        rank.buckets.back().push_back(member->request.name());
        rank.outcomes[member->request.name()].push_back("ran");
        member->completion.done.set();
      }
    }
    for (const auto& [submission, failure] : decisions.failed) {
      rank.outcomes[submission->request.name()].push_back(failure.message);
      submission->completion.failure = failure;
      submission->completion.done.set();
    }
    for (const auto& submission : decisions.withdrawn) submission->completion.done.set();
  }

  std::mt19937_64 random_, chance_of_time_;
  Request::Clock::time_point now_{};
  Topology topology_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::map<std::pair<int, int>, std::deque<std::pair<Direction, std::vector<std::byte>>>> wires_;
  static constexpr std::size_t not_able = ~std::size_t{0};
  std::vector<int> able_;               // ranks whose programs can go on, in no order
  std::vector<std::size_t> places_;     // of each rank there
  std::set<int> unsettled_;             // ranks with messages or decisions to give out
  std::set<std::pair<int, int>> busy_;  // edges with a message under way
};

/// `nodes[i]` ranks on node i.
inline Topology nodes_of(const std::vector<int>& nodes) {
  Topology topology;
  for (std::size_t node = 0; node < nodes.size(); ++node) {
    for (int i = 0; i < nodes[node]; ++i) topology.places.push_back({static_cast<int>(node), "host", 1});
  }
  return topology;
}

}  // namespace kolo::testing
