#include "tests/runtime/simulator/virtual_world.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <deque>
#include <functional>
#include <map>
#include <new>
#include <numeric>
#include <optional>
#include <random>
#include <set>
#include <utility>

#include <gtest/gtest.h>
#include <kolo/backend.h>

#include "runtime/control/channel.h"
#include "runtime/world/parts.h"
#include "tests/runtime/simulator/simulation.h"

namespace kolo::testing {

using namespace std::chrono_literals;
using std::chrono::nanoseconds;

namespace {

constexpr const char* process_ended = "its process has ended";

/// Whether addresses on a fiber's stack are on the same one.
bool same_fiber(const char* a, const char* b) {
  constexpr std::ptrdiff_t deepest = 128 << 10;  // a quarter of a stack
  return std::abs(a - b) < deepest;
}

/// The fiber, one at a time, of which an allocation is to fail, by an address on its stack; and the fault.
struct ShortOfMemory {
  const char* stack = nullptr;
  Fault* fault = nullptr;

  bool strikes() {
    const char here = 0;
    if (!stack || simulation_works() || !same_fiber(&here, stack) || fault->kind != Fault::Kind::memory ||
        fault->call-- > 0)
      return false;
    fault->kind = Fault::Kind::none;
    return true;
  }
} short_of_memory;

}  // namespace

struct VirtualNetwork::State {
  std::mt19937_64 random;
  nanoseconds slowest;
  std::vector<std::deque<ControlChannel::Message>> inboxes;  // by receiver, in the order of their arrival
  std::map<std::pair<int, int>, nanoseconds> last_due{};     // by sender and receiver
  std::vector<ControlChannel*> channels;                     // the real ones, by rank, for their doorbells
  Notice notice;
  std::vector<std::optional<nanoseconds>> keeps;  // by rank: what others need, until it is called at that time or later
  std::set<int> leaving;
  std::vector<std::set<int>> on_node, elsewhere;  // by rank: who notices its end; of a connection, too
  std::set<int> killed{};
  std::vector<std::deque<ControlChannel::Loss>> losses{};  // by the rank that has noticed
  JobEnd end{};
  bool nodes_are_apart = false;

  nanoseconds draw(nanoseconds most) { return nanoseconds(random() % static_cast<std::uint64_t>(most.count() + 1)); }

  /// Does something at that time, and wakes the rank.
  void then_ring(nanoseconds time, int rank, std::function<void()> action) {
    at(time, [this, rank, action = std::move(action)] {
      action();
      if (ControlChannel* const channel = channels[static_cast<std::size_t>(rank)]) channel->doorbell().ring();
    });
  }

  void post(int from, int to, std::span<const std::byte> bytes) {
    nanoseconds& due = last_due[{from, to}];
    due = std::max(due + 1ns, virtual_time() + draw(slowest));
    then_ring(due, to, [this, to, message = ControlChannel::Message{from, {bytes.begin(), bytes.end()}}] {
      inboxes[static_cast<std::size_t>(to)].push_back(message);
    });
  }

  /// Those who watch a rank learn that it is gone.
  void end_of(int rank, const std::set<int>& watching, const std::string& why) {
    const std::string text = fmt::format("rank {} is gone: {}", rank, why);
    for (const int other : watching) {
      if (other == rank) continue;
      const nanoseconds due = std::max(last_due[{rank, other}], virtual_time()) + 1ns + draw(1ms);
      then_ring(due, other, [this, rank, other, text] {
        losses[static_cast<std::size_t>(other)].push_back({rank, text});
      });
    }
  }

  void called(int rank) {
    auto& until = keeps[static_cast<std::size_t>(rank)];
    if (until && virtual_time() >= *until) until.reset();
  }

  bool arrived(int rank) const { return !inboxes[static_cast<std::size_t>(rank)].empty(); }
};

namespace {

using State = VirtualNetwork::State;

class VirtualChannel final : public ControlChannel {
 public:
  VirtualChannel(std::unique_ptr<ControlChannel> real, std::shared_ptr<State> state, std::shared_ptr<Fault> fault)
      : real_(std::move(real)), state_(std::move(state)), fault_(std::move(fault)) {
    state_->channels[static_cast<std::size_t>(rank())] = real_.get();
  }
  ~VirtualChannel() override {
    const auto me = static_cast<std::size_t>(rank());
    state_->end_of(rank(), state_->elsewhere[me], "the connection to it was lost");
    state_->channels[me] = nullptr;
  }

  int rank() const override { return real_->rank(); }
  const Topology& topology() const override { return real_->topology(); }
  void open(const TreePosition& position) override {
    const auto mine = topology().node_ranks(rank());
    const std::set<int> here(mine.begin(), mine.end());
    std::set<int> neighbours(position.children.begin(), position.children.end());
    if (!position.root()) neighbours.insert(position.parent);
    for (const int other : here) {
      const bool is_new = state_->on_node[static_cast<std::size_t>(other)].insert(rank()).second;
      if (is_new && state_->killed.contains(other)) state_->end_of(other, {rank()}, process_ended);
    }
    for (const int other : neighbours) {
      if (here.contains(other)) continue;
      const bool is_new = state_->elsewhere[static_cast<std::size_t>(other)].insert(rank()).second;
      const bool had_met = state_->last_due.contains({other, rank()});
      if (is_new && had_met && state_->killed.contains(other)) state_->end_of(other, {rank()}, process_ended);
    }
  }
  void send(int to, std::span<const std::byte> message) override { state_->post(rank(), to, message); }
  bool receive(Message& message) override {
    const char here = 0;
    if (!maker_) maker_ = &here;
    made_ |= !same_fiber(&here, maker_);
    if (made_ && fault_->kind == Fault::Kind::memory && rank() == fault_->rank) short_of_memory = {&here, fault_.get()};
    if (!state_->arrived(rank())) return false;
    auto& inbox = state_->inboxes[static_cast<std::size_t>(rank())];
    message = std::move(inbox.front());
    inbox.pop_front();
    return true;
  }
  bool pending() override {
    return state_->arrived(rank()) || !state_->losses[static_cast<std::size_t>(rank())].empty();
  }
  std::optional<Loss> take_loss() override {
    auto& losses = state_->losses[static_cast<std::size_t>(rank())];
    if (losses.empty()) return std::nullopt;
    Loss loss = std::move(losses.front());
    losses.pop_front();
    return loss;
  }
  bool has_closed(int rank) override { return real_->has_closed(rank); }
  bool flush() override {
    short_of_memory = {};
    return true;
  }
  Doorbell& doorbell() override { return real_->doorbell(); }
  StatusBoard& board() override { return real_->board(); }
  bool spans_processes() const override { return false; }
  [[noreturn]] void abort_job(int exit_code) override {
    state_->end = {true, rank(), exit_code};
    end_simulation();
  }

 private:
  std::unique_ptr<ControlChannel> real_;
  std::shared_ptr<State> state_;
  std::shared_ptr<Fault> fault_;
  const char* maker_ = nullptr;  // the fiber that makes the session, by an address on its stack
  bool made_ = false;            // another one has run the cycle
};

/// Complete when the real operation is, and not before its time. Where it must be polled, nothing rings then.
class VirtualOperation final : public Operation {
 public:
  VirtualOperation(std::unique_ptr<Operation> real, std::shared_ptr<State> state, const GroupInfo& group, int rank,
                   nanoseconds time, bool fails)
      : real_(std::move(real)),
        state_(std::move(state)),
        ranks_(group.ranks),
        rank_(rank),
        pieces_(static_cast<int>(state_->random() % 4)),
        fails_(fails) {
    const auto done = [due = due_] { *due = true; };
    if (needs_polling()) {
      at(virtual_time() + time, done);
    } else {
      state_->then_ring(virtual_time() + time, rank, done);
    }
  }
  bool step() override {
    moved_ = false;
    if (!*due_) return false;
    moved_ = pieces_ > 0 && pieces_-- > 0;  // work that takes more than a step
    if (moved_) return false;
    if (fails_) throw Error(ErrorCode::backend, fmt::format("the operation failed on rank {}, as planned", rank_));
    state_->called(rank_);
    const auto withheld = [this](int rank) {
      return rank != rank_ && state_->keeps[static_cast<std::size_t>(rank)].has_value();
    };
    if (state_->notice == Notice::called && std::ranges::any_of(ranks_, withheld)) return false;
    if (!real_->step()) {
      moved_ = real_->moved();
      return false;
    }
    if (state_->notice == Notice::called && state_->random() % 4 == 0)
      state_->keeps[static_cast<std::size_t>(rank_)] = virtual_time() + state_->draw(1ms);
    return true;
  }
  bool needs_polling() const override { return state_->notice != Notice::rings; }
  bool moved() const override { return moved_; }
  bool holds_backend() const override { return real_->holds_backend(); }

 private:
  std::unique_ptr<Operation> real_;
  std::shared_ptr<State> state_;
  std::vector<int> ranks_;
  int rank_;
  int pieces_;
  bool moved_ = false;
  const std::shared_ptr<bool> due_ = std::make_shared<bool>(false);
  bool fails_;
};

class VirtualBackend final : public Backend {
 public:
  VirtualBackend(std::unique_ptr<Backend> real, std::shared_ptr<State> state, GroupInfo group, int rank,
                 std::shared_ptr<Fault> fault, bool introduced)
      : introduced_(introduced),
        real_(std::move(real)),
        state_(std::move(state)),
        group_(std::move(group)),
        rank_(rank),
        fault_(std::move(fault)) {}

  std::string_view name() const override { return real_->name(); }
  bool supports(const Signature& signature) const override {
    const bool meets = signature.kind == OpKind::all_gather && signature.dtype == DType::i64;
    return real_->supports(signature) && !(state_->nodes_are_apart && meets);
  }
  /// In some groups its ranks meet instead.
  bool compares_tokens() const override { return group_.id % 4 == 1 && real_->compares_tokens(); }
  std::unique_ptr<Operation> start(const Bucket& bucket) override {
    EXPECT_TRUE(introduced_);
    if (strikes(Fault::Kind::start)) throw std::bad_alloc();
    const nanoseconds time = state_->random() % 4 == 0 ? state_->draw(200us) : state_->draw(5us);
    return std::make_unique<VirtualOperation>(real_->start(bucket), state_, group_, rank_, time,
                                              strikes(Fault::Kind::step));
  }
  std::unique_ptr<Backend> for_group(const GroupInfo& group) override {
    if (strikes(Fault::Kind::group))
      throw Error(ErrorCode::backend, fmt::format("no group can be made on rank {}", rank_));
    auto real = real_->for_group(group);
    if (!real) return nullptr;
    return std::make_unique<VirtualBackend>(std::move(real), state_, group, rank_, fault_, group.is_pair());
  }
  std::unique_ptr<ByteLane> lane(int peer) override { return real_->lane(peer); }
  /// What everybody can check.
  Introduction introduction() override { return {rank_, static_cast<std::int64_t>(group_.id)}; }
  bool introduce(std::span<const Introduction> members) override {
    if (strikes(Fault::Kind::group))
      throw Error(ErrorCode::backend, fmt::format("no group can be made on rank {}", rank_));
    introduced_ = true;
    for (std::size_t i = 0; i < members.size(); ++i)
      EXPECT_EQ(members[i], (Introduction{group_.ranks[i], static_cast<std::int64_t>(group_.id)}));
    return true;
  }
  std::uint64_t staged_bytes() const override { return real_->staged_bytes(); }
  std::shared_ptr<MemorySource> memory() override { return real_->memory(); }
  bool must_be_called() const override { return state_->notice == Notice::called; }
  void progress(bool) override { state_->called(rank_); }
  bool settled() override {
    state_->called(rank_);
    if (!state_->keeps[static_cast<std::size_t>(rank_)]) state_->leaving.insert(rank_);
    return state_->leaving.size() == state_->keeps.size();
  }
  void abandon() noexcept override { real_->abandon(); }

 private:
  bool strikes(Fault::Kind kind) { return fault_->kind == kind && fault_->rank == rank_ && fault_->call-- == 0; }

  bool introduced_;
  std::unique_ptr<Backend> real_;
  std::shared_ptr<State> state_;
  GroupInfo group_;
  int rank_;
  std::shared_ptr<Fault> fault_;
};

}  // namespace

Fault draw_fault(std::uint64_t seed, int ranks, const std::vector<Fault::Kind>& kinds) {
  std::mt19937_64 random(seed * 77 + 5);
  Fault fault;
  fault.kind = kinds[random() % kinds.size()];
  fault.rank = static_cast<int>(random() % static_cast<std::uint64_t>(ranks));
  fault.when = nanoseconds(random() % (std::uint64_t{1000} << random() % 14));  // up to 8 ms, most of them soon
  fault.how_long = nanoseconds(random() % (std::uint64_t{1'000'000} << random() % 12));  // up to 2 s
  fault.call = static_cast<int>(random() % (kinds.size() > 2 ? 12 : 4));
  if (fault.kind == Fault::Kind::memory) fault.call = static_cast<int>(random() % (std::uint64_t{4} << random() % 9));
  if (fault.kind == Fault::Kind::leave) fault.call = static_cast<int>(random() % 40);
  return fault;
}

std::string to_string(const Fault& fault) {
  static constexpr std::string_view kinds[]{"none",  "late", "freeze", "stop",   "kill",
                                            "start", "step", "group",  "memory", "leave"};
  return fmt::format("{} on rank {} after {} us for {} us, call {}", kinds[static_cast<std::size_t>(fault.kind)],
                     fault.rank, fault.when / 1us, fault.how_long / 1us, fault.call);
}

VirtualNetwork::VirtualNetwork(std::uint64_t seed, int ranks, nanoseconds slowest, Notice notice)
    : state_(std::make_shared<State>(
          State{.random = std::mt19937_64(seed),
                .slowest = slowest,
                .inboxes = std::vector<std::deque<ControlChannel::Message>>(static_cast<std::size_t>(ranks)),
                .channels = std::vector<ControlChannel*>(static_cast<std::size_t>(ranks)),
                .notice = notice,
                .keeps = std::vector<std::optional<nanoseconds>>(static_cast<std::size_t>(ranks)),
                .on_node = std::vector<std::set<int>>(static_cast<std::size_t>(ranks)),
                .elsewhere = std::vector<std::set<int>>(static_cast<std::size_t>(ranks)),
                .losses = std::vector<std::deque<ControlChannel::Loss>>(static_cast<std::size_t>(ranks))})) {}
VirtualNetwork::~VirtualNetwork() = default;

void VirtualNetwork::enter(int rank, World& world, const Fault& fault) {
  WorldParts& parts = world.parts();
  const auto mine = std::make_shared<Fault>(fault);
  parts.control = std::make_unique<VirtualChannel>(std::move(parts.control), state_, mine);
  GroupInfo all;
  all.ranks.resize(state_->keeps.size());
  std::iota(all.ranks.begin(), all.ranks.end(), 0);
  for (auto& backend : parts.backends)
    backend = std::make_unique<VirtualBackend>(std::move(backend), state_, all, rank, mine, true);
  if (rank != fault.rank) return;
  if (fault.kind == Fault::Kind::late) freeze(rank, fault.how_long);
  if (fault.kind == Fault::Kind::freeze) at(fault.when, [=] { freeze(rank, fault.how_long); });
  if (fault.kind == Fault::Kind::stop) at(fault.when, [=] { kill(rank); });
  if (fault.kind == Fault::Kind::kill) {
    at(fault.when, [=, state = state_] {
      kill(rank);
      state->killed.insert(rank);
      for (const auto* watching : {&state->on_node, &state->elsewhere})
        state->end_of(rank, (*watching)[static_cast<std::size_t>(rank)], process_ended);
    });
  }
}

void VirtualNetwork::keep_nodes_apart() {
  state_->nodes_are_apart = true;
}

const JobEnd& VirtualNetwork::job_end() const {
  return state_->end;
}

}  // namespace kolo::testing

[[gnu::noinline]] void* operator new(std::size_t bytes) {
  if (kolo::testing::short_of_memory.strikes()) throw std::bad_alloc();
  if (void* const memory = std::malloc(std::max<std::size_t>(bytes, 1))) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
