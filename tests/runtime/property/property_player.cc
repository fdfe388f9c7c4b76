#include "tests/runtime/property/property_player.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
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
  std::vector<Group> groups;                 // by index; only thread 0 makes some
  Group alone;                               // this rank's, in which its functions run operations
  Group ordered;                             // of all ranks, in which some of them send and receive by tag
  std::vector<std::atomic<bool>> abandoned;  // by this rank, by index
  int begun = 0;                             // operations of thread 0

  void may_leave() {
    if (program.leave && program.leave->rank == session.rank() && begun++ == program.leave->after) throw PlannedLeave();
  }

  /// This rank's in the group of an operation; -1 if it is not in it, or the group could not be made.
  int rank_in(const PropertyOp& op) const {
    if (!was_made(op.group)) return -1;
    const auto& ranks = program.groups[static_cast<std::size_t>(op.group)];
    const auto place = std::find(ranks.begin(), ranks.end(), session.rank());
    return place == ranks.end() ? -1 : static_cast<int>(place - ranks.begin());
  }
  /// Whether this rank has abandoned the group of an operation, which must fail then.
  bool has_abandoned(const PropertyOp& op) const {
    return !op.abandoned_by.empty() && abandoned[static_cast<std::size_t>(op.group)];
  }
  bool was_made(int index) const { return groups[static_cast<std::size_t>(index)].info() != nullptr; }
  Group& group(int index) { return groups[static_cast<std::size_t>(index)]; }
};

using Ops = std::vector<const PropertyOp*>;
using Submitted = std::shared_ptr<PropertySubmission>;

/// Returns when `reached` says so, which takes nothing but a thread of this rank.
template <class Reached>
void wait_until_seen(Reached&& reached, const std::string& what) {
  const auto start = std::chrono::steady_clock::now();
  for (int look = 0; !reached(); ++look) {
    if (std::chrono::steady_clock::now() - start > std::chrono::seconds(60)) throw std::runtime_error(what);
    if (look < 20)
      std::this_thread::yield();
    else
      std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

/// The functions that one thread of a rank has given operations. They run in a thread of the session, and may outlive
/// what has given them, but not the session.
class Functions {
 public:
  explicit Functions(std::shared_ptr<Player> player) : player_(std::move(player)) {}

  /// Checks what an operation has left behind, or notes its error, when it is done; then does what `more` is.
  void follow(const Submitted& submission, std::function<void()> more = {}) {
    submission->handle().on_done(once([player = player_, submission, more = std::move(more)](const Error* error) {
      const PropertyOp& op = submission->op();
      if (error)
        player->shared.failed(op, player->rank_in(op), *error);
      else if (!op.fails())
        submission->check();
      if (more) more();
    }));
  }

  /// Drops the handle; returns whether that withdrew the operation, or else what it left behind is checked, or its
  /// error noted.
  bool withdraw(const Submitted& submission, const std::function<void()>& delay) {
    struct Outcome {
      std::atomic<bool> told{false};
      std::optional<Error> error;
    };
    const auto outcome = std::make_shared<Outcome>();
    submission->handle().on_done(once([outcome](const Error* error) {
      if (error) outcome->error.emplace(*error);
      outcome->told = true;
    }));
    delay();
    submission->drop();
    wait_until_seen([&] { return outcome->told.load(); }, "no function was told of a dropped handle");
    const std::optional<Error>& error = outcome->error;
    const PropertyOp& op = submission->op();
    if (!error) return submission->check(), false;
    if (std::string(error->what()).find("withdrawn (its handle died") == std::string::npos)
      return player_->shared.failed(op, player_->rank_in(op), *error), false;
    if (error->code() != ErrorCode::aborted || (op.trouble == Trouble::raced && !submission->left_alone()))
      player_->shared.problem(to_string(op) + ": what was withdrawn has run");
    return true;
  }

  /// The operation goes on without its handle, and keeps its memory.
  void let_go(const Submitted& submission) {
    const auto dead = std::make_shared<std::atomic<bool>>(false);
    follow(submission, [player = player_, &op = submission->op(), dead] {
      if (*dead) player->shared.problem(to_string(op) + ": its memory was let go before it was done");
    });
    ++counts_->given;
    const auto die = [submission, dead, counts = counts_](const void*) {
      *dead = true;
      ++counts->seen;
    };
    submission->handle().detach(std::shared_ptr<const void>(submission.get(), die));
  }

  /// Submits `later` in a function of `before`.
  void submit_after(const Submitted& before, const Submitted& later) {
    const auto submitted = std::make_shared<std::atomic<bool>>(false);
    follow(before, [player = player_, later, submitted] {
      try {
        later->submit();
      } catch (const Error& error) {
        player->shared.failed(later->op(), player->rank_in(later->op()), error);
      }
      *submitted = true;
    });
    later_.push_back({later, submitted});
  }

  /// Runs an operation of this rank alone in a function of `before`, and waits for it there.
  void run_alone_after(const Submitted& before) {
    follow(before, [player = player_] {
      float one = 1;
      try {
        player->session.all_reduce_async("alone", view_scalar(one), {.group = player->alone}).wait();
        if (one != 1) player->shared.problem("the sum of one rank is not its value");
      } catch (const Error& error) {
        player->shared.unexpected(fmt::format("in a function: {}", error.what()));
      }
    });
  }

  /// What functions submit, once they have.
  std::vector<Submitted> submitted() {
    std::vector<Submitted> result;
    for (auto& [submission, submitted] : std::exchange(later_, {})) {
      wait_until_seen([&] { return submitted->load(); }, "a function has not submitted what it ought to");
      if (submission->handle()) result.push_back(submission);
    }
    return result;
  }

  /// Returns when each has run, once, and has let go what was kept.
  void finish() {
    wait_until_seen([&] { return counts_->seen >= counts_->given; }, "not all functions have run");
    if (counts_->seen != counts_->given) player_->shared.problem("functions have run twice");
  }

 private:
  struct Counts {
    std::atomic<int> given{0}, seen{0};
  };

  template <class Function>
  std::function<void(const Error*)> once(Function function) {
    ++counts_->given;
    return [counts = counts_, function = std::move(function)](const Error* error) {
      function(error);
      ++counts->seen;
    };
  }

  const std::shared_ptr<Player> player_;
  const std::shared_ptr<Counts> counts_ = std::make_shared<Counts>();
  std::vector<std::pair<Submitted, std::shared_ptr<std::atomic<bool>>>> later_;
};

/// What one thread of a rank does in one step.
class Lane {
 public:
  Lane(const std::shared_ptr<Player>& player, int step, int thread, std::uint64_t seed)
      : player_(*player), session_(player->session), functions_(player), step_(step), thread_(thread), random_(seed) {}
  /// If it ends by an exception: other ranks may wait for what else is open before they begin what must be waited for.
  ~Lane() {
    std::erase_if(open_, [](const Submitted& one) { return one->op().in_order; });
  }
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  /// In the order of the program, with waits in between.
  void in_order(const Ops& ops) {
    begin_each(ops, true, [this] {
      if (chance(10)) finish_one();
    });
  }

  /// Submits everything before it waits for anything; what others may wait for first, what waits itself last.
  void in_any_order(const Ops& ops) {
    Ops first, any, last;
    for (const PropertyOp* op : ops) {
      const bool awaited = op->trouble == Trouble::withdrawn || op->trouble == Trouble::duplicate;
      const bool waits = blocks(op->call) && op->call != Call::abandon_group;
      (waits || op->trouble == Trouble::late ? last : awaited ? first : any).push_back(op);
    }
    std::shuffle(any.begin(), any.end(), random_);
    keep_order(any);
    for (const Ops* part : {&first, &any, &last}) begin_each(*part, false, [] {});
  }

  void finish_all() {
    while (!open_.empty()) finish_one();
    open_ = functions_.submitted();
    while (!open_.empty()) finish_one();
    functions_.finish();
  }

 private:
  int draw(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }
  bool chance(int percent) { return draw(1, 100) <= percent; }

  void delay() {
    if (chance(2)) std::this_thread::sleep_for(std::chrono::microseconds(draw(0, 150)));
    if (chance(10)) std::this_thread::yield();
  }

  /// What is sent under one name keeps its order, and what a group matches by order.
  static void keep_order(Ops& ops) {
    std::map<std::tuple<int, std::string, int, int>, std::vector<std::size_t>> places;
    for (std::size_t i = 0; i < ops.size(); ++i) {
      if (ops[i]->in_order || ops[i]->call == Call::barrier)
        places[{ops[i]->group, "", -1, -1}].push_back(i);
      else if (ops[i]->call == Call::send_recv)
        places[{ops[i]->group, ops[i]->name, ops[i]->root, ops[i]->peer}].push_back(i);
    }
    for (const auto& [key, where] : places) {
      Ops sorted;
      for (std::size_t i : where) sorted.push_back(ops[i]);
      std::sort(sorted.begin(), sorted.end(), [](const PropertyOp* a, const PropertyOp* b) { return a->id < b->id; });
      for (std::size_t i = 0; i < where.size(); ++i) ops[where[i]] = sorted[i];
    }
  }

  /// `waits`: in between, so none may begin before those that are in front of it.
  template <class After>
  void begin_each(const Ops& ops, bool waits, After&& after) {
    std::set<const PropertyOp*> begun;
    for (auto place = ops.begin(); place != ops.end(); ++place) {
      if (begun.contains(*place)) continue;
      Ops batch;
      if (fits_in_batch(**place) && chance(30)) batch = batch_from({place, ops.end()}, begun, waits);
      if (batch.size() > 1) {
        begin_batch(batch);
        begun.insert(batch.begin(), batch.end());
      } else {
        begin(**place);
      }
      after();
    }
  }

  /// The first of these, and others that may be submitted with it, in any order.
  Ops batch_from(const Ops& ops, const std::set<const PropertyOp*>& begun, bool of_neighbours) {
    Ops batch;
    std::set<std::pair<int, std::string>> passed_over;  // by group and name: they keep their order
    const auto what = [&](const PropertyOp& op) {
      const int rank = player_.rank_in(op);
      return std::tuple(op.by_tag() && !op.in_order ? -1 : op.group, op.by_tag(), timeout_of(op, rank), op.priority);
    };
    for (const PropertyOp* op : ops) {
      if (of_neighbours && passed_over.size() > 0) break;
      if (begun.contains(op)) continue;
      const std::pair name(op->group, op->name);
      const bool fits = fits_in_batch(*op) && what(*op) == what(*ops.front()) && !passed_over.contains(name);
      if (fits && (batch.empty() || chance(80)))
        batch.push_back(op);
      else
        passed_over.insert(name);
    }
    std::shuffle(batch.begin(), batch.end(), random_);
    keep_order(batch);
    return batch;
  }

  bool fits_in_batch(const PropertyOp& op) const {
    const bool receives_any = !op.any.empty() && player_.rank_in(op) == op.peer;
    return op.call == Call::send_recv && op.trouble == Trouble::none && !receives_any;
  }

  void begin_batch(const Ops& ops) {
    delay();
    if (thread_ == 0) player_.may_leave();
    std::vector<Submitted> batch;
    std::vector<PairOperation> operations;
    for (const PropertyOp* op : ops) {
      batch.push_back(submission(*op));
      operations.push_back(batch.back()->operation());
    }
    auto handles = session_.batch_async(operations, batch.front()->pair_options());
    for (std::size_t i = 0; i < batch.size(); ++i) {
      batch[i]->begun(std::move(handles[i]));
      open_.push_back(batch[i]);
    }
  }

  void begin(const PropertyOp& op) {
    delay();
    if (thread_ == 0) player_.may_leave();
    if (chance(1)) misuse();
    const int rank = player_.rank_in(op);
    if (op.trouble == Trouble::late && op.is_odd(rank)) player_.shared.await(op);
    if (op.ends_group()) return end_group(op);
    if (blocks(op.call)) return call(op);
    if (op.is_odd(rank) && op.refused()) {
      refused(ErrorCode::invalid_argument, "", [&] {
        const auto wrong = submission(op);
        wrong->submit();
        return std::move(wrong->handle());
      });
    }
    if (op.is_odd(rank) && op.trouble == Trouble::withdrawn) {
      auto first = submission(op);
      first->submit();
      if (chance(30) && !functions_.withdraw(first, [this] { delay(); }))
        player_.shared.unexpected(to_string(op) + ": what the others had not submitted was not withdrawn");
      delay();
      first.reset();
      player_.shared.reach(op);
    } else if (op.is_odd(rank) && op.trouble == Trouble::raced) {
      auto first = submission(op);
      first->submit();
      if (!player_.shared.knows_all() || chance(30)) {  // a function hears of a failure that the handle does not tell
        if (!functions_.withdraw(first, [this] { delay(); })) return;
      } else {
        delay();
        first->drop();
        if (!first->left_alone()) return first->check();
      }
    } else if (!op.is_odd(rank) && (op.trouble == Trouble::withdrawn || op.trouble == Trouble::duplicate)) {
      player_.shared.await(op);
    }
    const auto mine = submission(op, op.refused());
    if (last_ && last_->handle() && last_->op().id < op.id && can_be_later(op) && chance(8))
      return functions_.submit_after(std::exchange(last_, nullptr), mine);
    mine->submit();
    open_.push_back(mine);
    if (op.is_odd(rank) && op.trouble == Trouble::duplicate) submit_again(op);
    if (op.trouble == Trouble::late) return finish(std::prev(open_.end()));
    if (chance(8)) functions_.follow(mine);
    if (chance(2) && player_.alone.info()) functions_.run_alone_after(mine);
    if (player_.shared.knows_all() && !op.fails() && op.abandoned_by.empty() && chance(8)) {
      functions_.let_go(mine);
      return open_.pop_back();
    }
    if (can_be_later(op)) last_ = mine;
    if (chance(10)) (void)open_[static_cast<std::size_t>(draw(0, static_cast<int>(open_.size()) - 1))]->handle().poll();
  }

  /// Whether an operation may be submitted after another one is done: those of a group whose ranks join are submitted
  /// before that, and sends and receives in their order.
  bool can_be_later(const PropertyOp& op) const {
    return op.trouble == Trouble::none && !op.in_order && moves_tensors(op.call) && op.call != Call::send_recv &&
           op.group != player_.program.steps[static_cast<std::size_t>(step_)].joined_group;
  }

  Submitted submission(const PropertyOp& op, bool again = false) {
    const PropertyStep& step = player_.program.steps[static_cast<std::size_t>(step_)];
    return std::make_shared<PropertySubmission>(session_, step, op, player_.group(op.group), player_.ordered,
                                                player_.rank_in(op), player_.shared, again, player_.has_abandoned(op));
  }

  /// An operation that ends its group: it fails on every rank, or the next one does.
  void end_group(const PropertyOp& op) {
    const int rank = player_.rank_in(op);
    for (int attempt = 0; attempt < 2; ++attempt) {
      const auto mine = submission(op);
      try {
        mine->submit();
        mine->handle().wait();
      } catch (const Error& error) {
        player_.shared.failed(op, rank, error);
        break;
      }
    }
    if (op.trouble == Trouble::late) player_.shared.reach(op);
  }

  /// The same name while it is in flight, alone or among others.
  void submit_again(const PropertyOp& op) {
    float value = 1;
    const std::string& name = op.tensors[op.seed % op.tensors.size()].name;
    const std::vector<NamedTensor> tensors{{"unused", view_scalar(value), view_scalar(value)},
                                           {name, view_scalar(value), view_scalar(value)}};
    const AllReduceOptions options{.group = player_.group(op.group)};
    refused(ErrorCode::in_flight, fmt::format("'{}'", name), [&] {
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
        return refused(ErrorCode::invalid_argument, "'kolo.mine'",
                       [&] { return session_.all_reduce_async("kolo.mine", view_scalar(value)); });
      case 1:
        return refused(ErrorCode::invalid_argument, "'to myself'",
                       [&] { return session_.send_async("to myself", view_scalar(value), session_.rank()); });
      default:
        return refused(ErrorCode::in_flight, "'twice'", [&] {
          return session_.grouped_all_reduce_async("group of two", std::vector{twice, twice});
        });
    }
  }

  template <class Submit>
  void refused(ErrorCode code, const std::string& word, Submit&& submit) {
    try {
      const Handle handle = submit();
      player_.shared.unexpected(word + " was accepted");
    } catch (const Error& error) {
      const bool right = error.code() == code && std::string(error.what()).find(word) != std::string::npos;
      if (!right) player_.shared.problem(fmt::format("{} was refused with: {}", word, error.what()));
    }
  }

  void finish_one() {
    if (open_.empty()) return;
    if (open_.size() > 1 && chance(15)) return finish(open_.begin() + static_cast<std::ptrdiff_t>(any_done()));
    if (open_.size() > 1 && chance(5)) return finish_several();
    finish(open_.begin() + draw(0, static_cast<int>(open_.size()) - 1));
  }

  std::size_t any_done() {
    std::vector<Handle*> handles;
    for (const Submitted& submission : open_) handles.push_back(&submission->handle());
    const std::size_t done = wait_any(std::span<Handle* const>(handles));
    if (!handles[done]->poll())
      player_.shared.problem(to_string(open_[done]->op()) + ": wait_any() has returned before it was done");
    return done;
  }

  /// wait_all() throws the first failure: functions note those of all.
  void finish_several() {
    std::shuffle(open_.begin(), open_.end(), random_);
    const auto first = open_.begin() + draw(0, static_cast<int>(open_.size()) - 2);
    std::vector<Handle> handles;
    const PropertyOp* fails = nullptr;
    bool any_may_fail = false;
    for (auto place = first; place != open_.end(); ++place) {
      functions_.follow(*place);
      handles.push_back(std::move((*place)->handle()));
      if (!fails && (*place)->op().fails()) fails = &(*place)->op();
      any_may_fail |= !(*place)->op().abandoned_by.empty();
    }
    open_.erase(first, open_.end());
    try {
      wait_all(handles);
      if (fails) player_.shared.unexpected(to_string(*fails) + ": wait_all() has thrown nothing");
    } catch (const Error& error) {
      if (any_may_fail) return;
      if (fails && player_.shared.knows_all())
        player_.shared.failed(*fails, player_.rank_in(*fails), error);
      else
        player_.shared.unexpected(fmt::format("wait_all() has thrown: {}", error.what()));
    }
  }

  void finish(std::vector<Submitted>::iterator place) {
    const PropertyOp& op = (*place)->op();
    try {
      Handle& handle = (*place)->handle();
      const int looks = chance(15) ? draw(1, 3) : 0;
      bool done = false;
      for (int look = 0; look < looks && !done; ++look)
        done = handle.wait_until(std::chrono::steady_clock::now() + std::chrono::microseconds(draw(-50, 500)));
      if (!done) handle.wait();
      if (handle) player_.shared.problem(to_string(op) + ": its handle is not empty after a wait");
      if ((*place)->comes_too_late()) player_.shared.problem(to_string(op) + ": ran in a group that was abandoned");
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
      const bool comes_too_late = player_.has_abandoned(op);
      call_now(op);
      if (comes_too_late) player_.shared.problem(to_string(op) + ": ran in a group that was abandoned");
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
        const BroadcastOptions options{.root = root, .group = group};
        const std::string mine = object(op, rank);
        const std::string got =
            op.in_order ? session_.broadcast_object(mine, options) : session_.broadcast_object(op.name, mine, options);
        return expect(op, got == object(op, op.root), "the object");
      }
      case Call::all_gather_object: {
        std::vector<std::string> wanted;
        for (int from = 0; from < op.ranks; ++from) wanted.push_back(op.is_absent(from) ? "" : object(op, from));
        const std::string mine = object(op, rank);
        const auto got =
            op.in_order ? session_.all_gather_object(mine, group) : session_.all_gather_object(op.name, mine, group);
        return expect(op, got == wanted, "the list of objects");
      }
      case Call::join: return player_.shared.joined(step_, session_.join(group));
      case Call::new_group: return made(op, 0, session_.new_group(op.members, order_of(op)));
      case Call::split: {
        const auto mine = static_cast<std::size_t>(rank);
        const Group group_of_color =
            session_.split(op.members[mine], op.members[mine + static_cast<std::size_t>(op.ranks)], order_of(op));
        for (std::size_t i = 0; i < op.made.size(); ++i) {
          const auto& ranks = player_.program.groups[static_cast<std::size_t>(op.made[i])];
          if (std::find(ranks.begin(), ranks.end(), rank) != ranks.end()) made(op, i, group_of_color);
        }
        return;
      }
      case Call::abandon_group:
        session_.abandon_group(group);
        player_.abandoned[static_cast<std::size_t>(op.group)] = true;
        return;
      default: return session_.remove_group(player_.group(op.members.front()));
    }
  }

  static GroupOptions order_of(const PropertyOp& op) {
    return {.order = op.makes_ordered ? Order::program : Order::names};
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
  Functions functions_;
  int step_;
  int thread_;
  std::mt19937_64 random_;
  std::vector<Submitted> open_;
  Submitted last_;  // the last one whose function may submit another, of those behind it in the program
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
    if (op.in_order) return 0;
    if (step_.joined_group >= 0) return count == 1 ? 0 : 1 + chosen % (count - 1);
    return matches_in_order(op.call) ? 0 : chosen % count;
  }

  const Player& player_;
  const PropertyStep& step_;
  int threads_;
  std::vector<Ops> parts_;
  Ops joining_;
};

void play_step(const std::shared_ptr<Player>& shared_player, int index) {
  Player& player = *shared_player;
  const Lanes lanes(player, player.program.steps[static_cast<std::size_t>(index)]);
  const auto run = [&](int thread) {
    const auto rank = static_cast<std::uint64_t>(player.session.rank());
    Lane lane(shared_player, index, thread,
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
  config.fusion_tuning = program.seed % 2 == 0 ? "on" : "off";
  config.spin_us = program.spin_us;
  if (program.seed % 3 == 0) config.remembered_tensors = 1 + static_cast<std::int64_t>(program.seed % 5);
  if (program.fake_nodes.empty() && program.ranks > 2 && program.seed % 2 == 1)  // for shared memory only
    config.fake_domains = fmt::format("{},{}", program.ranks / 2, program.ranks - program.ranks / 2);
  config.stall_report_seconds = 15;
  config.stall_abort_seconds = 25;
  config.report = [seed = program.seed](const std::string& line) {
    std::fprintf(stderr, "KOLO_TEST_SEED=%llu: %s\n", static_cast<unsigned long long>(seed), line.c_str());
  };
  return config;
}

void play(Session& session, const PropertyProgram& program, SharedState& shared) {
  const auto player = std::make_shared<Player>(Player{session,
                                                      program,
                                                      shared,
                                                      std::vector<Group>(program.groups.size()),
                                                      {},
                                                      {},
                                                      std::vector<std::atomic<bool>>(program.groups.size())});
  player->groups[0] = session.world();
  if (shared.knows_all()) player->alone = session.new_group(std::vector{session.rank()});
  player->ordered = session.new_group(session.world().info()->ranks, {.order = Order::program});
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
