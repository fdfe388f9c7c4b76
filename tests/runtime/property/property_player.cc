#include "tests/runtime/property/property_player.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <map>
#include <memory>
#include <random>
#include <thread>
#include <tuple>
#include <utility>

#include <kolo/detail/hash.h>

#include "tests/runtime/property/property_model.h"
#include "tests/runtime/property/property_submission.h"
#include "tests/support/environment.h"
#include "tests/support/thread_ranks.h"

namespace kolo::testing {
namespace {

/// That a rank's program ends by, as planned.
struct PlannedLeave final : std::exception {
  const char* what() const noexcept override { return "as planned"; }
};

/// One rank of a program: what its threads share.
struct Player {
  Session& session;
  const PropertyProgram& program;
  SharedState& shared;
  std::vector<Group> groups;  // by index; only thread 0 makes some
  int begun = 0;              // operations of thread 0

  void may_leave() {
    if (program.leave && program.leave->rank == session.rank() && begun++ == program.leave->after) throw PlannedLeave();
  }

  /// This rank's in the group of an operation; -1 if it is not in it, or the group could not be made.
  int rank_in(const PropertyOp& op) const {
    if (!was_made(op.group) || (op.call == Call::remove_group && !was_made(op.members.front()))) return -1;
    const auto& ranks = program.groups[static_cast<std::size_t>(op.group)];
    const auto place = std::find(ranks.begin(), ranks.end(), session.rank());
    return place == ranks.end() ? -1 : static_cast<int>(place - ranks.begin());
  }
  bool was_made(int index) const { return groups[static_cast<std::size_t>(index)].info() != nullptr; }
  Group& group(int index) { return groups[static_cast<std::size_t>(index)]; }
};

using Ops = std::vector<const PropertyOp*>;

/// What one thread of a rank does in one step.
class Lane {
 public:
  Lane(Player& player, int step, int thread, std::uint64_t seed)
      : player_(player), session_(player.session), step_(step), thread_(thread), random_(seed) {}

  /// In the order of the program, with waits in between.
  void in_order(const Ops& ops) {
    for (const PropertyOp* op : ops) {
      begin(*op);
      if (chance(10)) finish_one();
    }
  }

  /// Submits everything before it waits for anything; what others may wait for first, what waits itself last.
  void in_any_order(const Ops& ops) {
    Ops first, any, last;
    for (const PropertyOp* op : ops) {
      const bool awaited = op->trouble == Trouble::withdrawn || op->trouble == Trouble::duplicate;
      (blocks(op->call) || op->trouble == Trouble::late ? last : awaited ? first : any).push_back(op);
    }
    std::shuffle(any.begin(), any.end(), random_);
    sort_messages(any);
    for (const Ops* part : {&first, &any, &last}) {
      for (const PropertyOp* op : *part) begin(*op);
    }
  }

  void finish_all() {
    while (!open_.empty()) finish_one();
  }

 private:
  int draw(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }
  bool chance(int percent) { return draw(1, 100) <= percent; }

  void delay() {
    if (chance(2)) std::this_thread::sleep_for(std::chrono::microseconds(draw(0, 150)));
    if (chance(10)) std::this_thread::yield();
  }

  /// What is sent under one name keeps its order.
  static void sort_messages(Ops& ops) {
    std::map<std::tuple<int, std::string, int, int>, std::vector<std::size_t>> places;
    for (std::size_t i = 0; i < ops.size(); ++i) {
      if (ops[i]->call == Call::send_recv)
        places[{ops[i]->group, ops[i]->name, ops[i]->root, ops[i]->peer}].push_back(i);
    }
    for (const auto& [key, where] : places) {
      Ops sorted;
      for (std::size_t i : where) sorted.push_back(ops[i]);
      std::sort(sorted.begin(), sorted.end(), [](const PropertyOp* a, const PropertyOp* b) { return a->id < b->id; });
      for (std::size_t i = 0; i < where.size(); ++i) ops[where[i]] = sorted[i];
    }
  }

  void begin(const PropertyOp& op) {
    delay();
    if (thread_ == 0) player_.may_leave();
    if (chance(1)) misuse();
    const int rank = player_.rank_in(op);
    if (op.trouble == Trouble::late && op.is_odd(rank)) player_.shared.await(op);
    if (blocks(op.call)) return call(op);
    if (op.is_odd(rank) && op.trouble == Trouble::withdrawn) {
      auto first = submission(op);
      first->submit();
      delay();
      first.reset();
      player_.shared.reach(op);
    } else if (op.is_odd(rank) && op.trouble == Trouble::raced) {
      auto first = submission(op);
      first->submit();
      delay();
      first->drop();
      if (!first->left_alone()) return player_.shared.knows_all() ? first->check() : void();
    } else if (!op.is_odd(rank) && (op.trouble == Trouble::withdrawn || op.trouble == Trouble::duplicate)) {
      player_.shared.await(op);
    }
    open_.push_back(submission(op));
    open_.back()->submit();
    if (op.is_odd(rank) && op.trouble == Trouble::duplicate) submit_again(op);
    if (op.trouble == Trouble::late) return finish(std::prev(open_.end()));
    if (chance(10)) (void)open_[static_cast<std::size_t>(draw(0, static_cast<int>(open_.size()) - 1))]->poll();
  }

  std::unique_ptr<PropertySubmission> submission(const PropertyOp& op) {
    return std::make_unique<PropertySubmission>(session_, op, player_.group(op.group), player_.rank_in(op),
                                                player_.shared);
  }

  /// The same name while it is in flight, alone or among others.
  void submit_again(const PropertyOp& op) {
    float value = 1;
    const std::string& name = op.tensors[op.seed % op.tensors.size()].name;
    const std::vector<NamedTensor> tensors{{"unused", view_scalar(value), view_scalar(value)},
                                           {name, view_scalar(value), view_scalar(value)}};
    const AllReduceOptions options{.group = player_.group(op.group)};
    refused(ErrorCode::in_flight, name, [&] {
      if (op.seed % 2 == 0) return session_.grouped_all_reduce_async("unused group", tensors, options);
      return session_.all_reduce_async(name, view_scalar(value), options);
    });
    player_.shared.reach(op);
  }

  /// Calls that throw at once, and of which no other rank hears.
  void misuse() {
    float value = 1;
    const NamedTensor twice{"twice", view_scalar(value), view_scalar(value)};
    switch (draw(0, 2)) {
      case 0:
        return refused(ErrorCode::invalid_argument, "kolo.mine",
                       [&] { return session_.all_reduce_async("kolo.mine", view_scalar(value)); });
      case 1:
        return refused(ErrorCode::invalid_argument, "to myself",
                       [&] { return session_.send_async("to myself", view_scalar(value), session_.rank()); });
      default:
        return refused(ErrorCode::in_flight, "twice", [&] {
          return session_.grouped_all_reduce_async("group of two", std::vector{twice, twice});
        });
    }
  }

  template <class Submit>
  void refused(ErrorCode code, const std::string& name, Submit&& submit) {
    try {
      const Handle handle = submit();
      player_.shared.unexpected(fmt::format("'{}' was accepted", name));
    } catch (const Error& error) {
      const bool right =
          error.code() == code && std::string(error.what()).find(fmt::format("'{}'", name)) != std::string::npos;
      if (!right) player_.shared.problem(fmt::format("'{}' was refused with: {}", name, error.what()));
    }
  }

  void finish_one() {
    if (!open_.empty()) finish(open_.begin() + draw(0, static_cast<int>(open_.size()) - 1));
  }

  void finish(std::vector<std::unique_ptr<PropertySubmission>>::iterator place) {
    const PropertyOp& op = (*place)->op();
    try {
      (*place)->wait();
      if (!op.fails()) (*place)->check();
    } catch (const Error& error) {
      player_.shared.failed(op, player_.rank_in(op), error);
    }
    if (op.trouble == Trouble::late) player_.shared.reach(op);
    open_.erase(place);
  }

  // ---- calls that have no handle ----

  void call(const PropertyOp& op) {
    try {
      call_now(op);
    } catch (const Error& error) {
      player_.shared.failed(op, player_.rank_in(op), error);
    }
    if (op.trouble == Trouble::late) player_.shared.reach(op);
  }

  void call_now(const PropertyOp& op) {
    const Group& group = player_.group(op.group);
    const int rank = player_.rank_in(op);
    switch (op.call) {
      case Call::monitored_barrier: {
        return session_.monitored_barrier(*timeout_of(op, rank), group);
      }
      case Call::broadcast_object: {
        const int root = op.is_odd(rank) ? odd_version(op).root : op.root;
        expect(
            op,
            session_.broadcast_object(op.name, object(op, rank), {.root = root, .group = group}) == object(op, op.root),
            "the object");
        return;
      }
      case Call::all_gather_object: {
        std::vector<std::string> wanted;
        for (int from = 0; from < op.ranks; ++from) wanted.push_back(op.is_absent(from) ? "" : object(op, from));
        return expect(op, session_.all_gather_object(op.name, object(op, rank), group) == wanted,
                      "the list of objects");
      }
      case Call::join: return player_.shared.joined(step_, session_.join(group));
      case Call::new_group: return made(op, 0, session_.new_group(ranks_for(op, rank)));
      case Call::split: {
        const auto mine = static_cast<std::size_t>(rank);
        const Group group_of_color =
            session_.split(op.members[mine], op.members[mine + static_cast<std::size_t>(op.ranks)]);
        for (std::size_t i = 0; i < op.made.size(); ++i) {
          const auto& ranks = player_.program.groups[static_cast<std::size_t>(op.made[i])];
          if (std::find(ranks.begin(), ranks.end(), rank) != ranks.end()) made(op, i, group_of_color);
        }
        return;
      }
      default: return session_.remove_group(player_.group(op.members.front()));
    }
  }

  std::vector<int> ranks_for(const PropertyOp& op, int rank) const {
    if (!op.is_odd(rank)) return op.members;
    if (op.trouble == Trouble::other_ranks) return {op.members == std::vector{0} ? 1 : 0};
    return op.seed % 2 == 0 ? std::vector{0, 0} : std::vector{0, op.ranks};
  }

  void made(const PropertyOp& op, std::size_t i, const Group& group) {
    if (op.fails()) return;
    const auto index = static_cast<std::size_t>(op.made[i]);
    expect(op, group.info()->ranks == player_.program.groups[index], "the list of ranks");
    player_.groups[index] = group;
  }

  void expect(const PropertyOp& op, bool good, const std::string& what) {
    if (!good && !op.fails())
      player_.shared.problem(fmt::format("{}: on session rank {} {} is wrong", to_string(op), session_.rank(), what));
  }

  Player& player_;
  Session& session_;
  int step_;
  int thread_;
  std::mt19937_64 random_;
  std::vector<std::unique_ptr<PropertySubmission>> open_;
};

/// Which thread of a rank submits what in a step.
class Lanes {
 public:
  Lanes(const Player& player, const PropertyStep& step) : player_(player), step_(step) {
    threads_ = player.program.threads[static_cast<std::size_t>(player.session.rank())];
    parts_.resize(static_cast<std::size_t>(threads_));
    for (const PropertyOp& op : step.ops) {
      const int rank = player.rank_in(op);
      if (rank < 0 || !op.takes_part(rank)) continue;
      if (joins(op))
        joining_.push_back(&op);
      else
        parts_[lane_of(op)].push_back(&op);
    }
  }

  int threads() const { return threads_; }

  void run(Lane& lane, int thread) const {
    const Ops& mine = parts_[static_cast<std::size_t>(thread)];
    if (step_.ordered && step_.joined_group < 0)
      lane.in_order(mine);
    else
      lane.in_any_order(mine);
    if (thread == 0) lane.in_order(joining_);
    lane.finish_all();
  }

 private:
  /// Belongs to the group whose ranks join: in order, after all else that this thread does.
  bool joins(const PropertyOp& op) const { return op.group == step_.joined_group; }

  std::size_t lane_of(const PropertyOp& op) const {
    const auto count = static_cast<std::uint64_t>(threads_);
    const auto rank = static_cast<std::uint64_t>(player_.session.rank());
    const std::uint64_t chosen = op.call == Call::send_recv ? mix(detail::Hash().add(op.name).value(), rank,
                                                                  static_cast<std::uint64_t>(op.group))
                                                            : mix(op.seed, rank);
    if (step_.joined_group >= 0) return count == 1 ? 0 : 1 + chosen % (count - 1);
    return matches_in_order(op.call) ? 0 : chosen % count;
  }

  const Player& player_;
  const PropertyStep& step_;
  int threads_;
  std::vector<Ops> parts_;
  Ops joining_;
};

void play_step(Player& player, int index) {
  const Lanes lanes(player, player.program.steps[static_cast<std::size_t>(index)]);
  const auto run = [&](int thread) {
    const auto rank = static_cast<std::uint64_t>(player.session.rank());
    Lane lane(player, index, thread,
              mix(player.program.seed, rank, static_cast<std::uint64_t>(index), static_cast<std::uint64_t>(thread)));
    lanes.run(lane, thread);
  };
  std::vector<std::exception_ptr> failures(static_cast<std::size_t>(lanes.threads()));
  const auto try_to_run = [&](int thread) {
    try {
      return run(thread);
    } catch (const PlannedLeave&) {
      player.shared.leave();
      failures[static_cast<std::size_t>(thread)] = std::current_exception();
    } catch (const std::exception& error) {
      player.shared.give_up(fmt::format("rank {}, thread {}: {}", player.session.rank(), thread, error.what()));
      failures[static_cast<std::size_t>(thread)] = std::current_exception();
    }
  };
  std::vector<std::thread> threads;
  for (int thread = 1; thread < lanes.threads(); ++thread) threads.emplace_back(try_to_run, thread);
  try_to_run(0);
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& failure : failures) {  // the rank's program ends with the first
    if (failure) std::rethrow_exception(failure);
  }
}

}  // namespace

Config config_of(const PropertyProgram& program) {
  Config config;
  config.fake_nodes = program.fake_nodes;
  config.fusion_bytes = program.fusion_bytes;
  config.spin_us = program.spin_us;
  if (program.seed % 3 == 0) config.remembered_tensors = 1 + static_cast<std::int64_t>(program.seed % 5);
  config.stall_report_seconds = 15;
  config.stall_abort_seconds = 25;
  config.report = [seed = program.seed](const std::string& line) {
    std::fprintf(stderr, "KOLO_TEST_SEED=%llu: %s\n", static_cast<unsigned long long>(seed), line.c_str());
  };
  return config;
}

void play(Session& session, const PropertyProgram& program, SharedState& shared) {
  Player player{session, program, shared, std::vector<Group>(program.groups.size())};
  player.groups[0] = session.world();
  for (int step = 0; step < static_cast<int>(program.steps.size()); ++step) play_step(player, step);
}

std::vector<std::string> run_program(const PropertyProgram& program, const Config& config,
                                     const std::function<void(int rank, World&)>& prepare, Checks checks) {
  auto worlds = test_worlds(program.ranks, config);
  SharedState shared(program, checks);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < program.ranks; ++rank) {
    World& world = worlds[static_cast<std::size_t>(rank)];
    if (prepare) prepare(rank, world);
    ranks.emplace_back([&] {
      try {
        Session session(std::move(world), config);
        play(session, program, shared);
        session.close();
        if (const auto late = session.stats().late_wakeups) shared.problem(fmt::format("{} late wake-ups", late));
      } catch (const PlannedLeave&) {
      } catch (const std::exception& error) {
        shared.give_up(error.what());
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
  shared.check();
  return shared.problems();
}

void play_programs(std::uint64_t count, int part, int parts, const MakePrepare& make_prepare) {
  std::size_t programs = 0, operations = 0;
  for (const std::uint64_t seed : seeds(count)) {
    if (seed % static_cast<std::uint64_t>(parts) != static_cast<std::uint64_t>(part)) continue;
    const auto program = draw_program(seed);
    if (std::getenv("KOLO_TEST_SEED")) std::printf("%s", to_string(program).c_str());
    Config config = config_of(program);
    const auto problems = run_program(program, config, make_prepare ? make_prepare(program, config) : Prepare());
    for (const std::string& problem : problems) ADD_FAILURE() << problem;
    if (!problems.empty()) FAIL() << "replay with KOLO_TEST_SEED=" << seed;
    ++programs;
    operations += static_cast<std::size_t>(program.operations());
  }
  std::printf("%zu programs, %zu operations\n", programs, operations);
}

}  // namespace kolo::testing
