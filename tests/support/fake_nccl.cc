#include "tests/support/fake_nccl.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <pthread.h>

#include <atomic>
#include <bit>
#include <chrono>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <thread>
#include <utility>

#include <kolo/float16.h>

#include "tests/support/fake_gpu.h"

namespace kolo::testing {

struct Call {
  std::string what;
  const void* in = nullptr;
  void* out = nullptr;
  std::size_t count = 0;
  NcclType type = NcclType::u8;
  NcclOp op = NcclOp::sum;
  int peer = 0;
  std::pair<std::size_t, std::ptrdiff_t> in_place{0, -1}, out_place{0, -1};  // in registered memory: its size, offset
};

/// What the ranks of a communicator share.
struct SharedComm {
  explicit SharedComm(int size) : ranks(size) {}
  struct Collective {
    std::vector<std::optional<Call>> calls;
    std::vector<std::vector<std::byte>> inputs;
    int arrived = 0, done = 0;
  };
  int ranks;
  std::mutex mutex;
  int initialised = 0;
  std::map<std::string, std::set<int>> connected;  // ranks, by kind and size of a call
  std::map<std::uint64_t, Collective> collectives;
  std::map<std::pair<int, int>, std::deque<std::vector<std::byte>>> sent;  // from, to
};

struct MadeOp {
  NcclType type;
  double factor;
};

namespace {

std::size_t size_of_type(NcclType type) {
  switch (type) {
    case NcclType::i8:
    case NcclType::u8: return 1;
    case NcclType::f16:
    case NcclType::bf16: return 2;
    case NcclType::i32:
    case NcclType::u32:
    case NcclType::f32: return 4;
    default: return 8;
  }
}

struct FakeState {
  std::mutex mutex;
  FakeNccl settings;
  std::mt19937_64 random{1};
  std::map<std::string, std::shared_ptr<SharedComm>> worlds;  // by id
  std::uint64_t ids = 0;
  std::map<int, std::vector<std::string>> log;
  std::map<int, std::vector<NcclLaunch>> launches;              // by GPU
  std::map<int, std::pair<NcclResult, int>> failures;           // by rank: what, after how many groups
  std::map<int, std::pair<NcclResult, bool>> running_failures;  // by rank: what, and whether its work is on the stream
  std::map<int, std::pair<NcclResult, int>> call_failures;      // by rank: what, after how many calls
  std::set<int> hanging, blocked;
  std::map<int, int> busy_multiprocessors;  // by GPU
  std::atomic<bool> ends_held{false};
};
FakeState& fake() {
  static FakeState& all = *new FakeState;  // helpers may outlive static objects
  return all;
}

void note(int rank, std::string text) {
  const std::lock_guard lock(fake().mutex);
  fake().log[rank].push_back(std::move(text));
}

bool answers_in_progress() {
  const std::lock_guard lock(fake().mutex);
  return static_cast<int>(fake().random() % 256) < fake().settings.in_progress;
}

bool blocked(int rank) {
  const std::lock_guard lock(fake().mutex);
  return fake().blocked.contains(rank);
}

/// A kernel begins when all its thread blocks fit on the GPU beside those of other kernels.
bool occupy(int gpu, int ctas) {
  const std::lock_guard lock(fake().mutex);
  int& busy = fake().busy_multiprocessors[gpu];
  if (busy + ctas > fake_multiprocessors) return false;
  busy += ctas;
  return true;
}
void vacate(int gpu, int ctas) {
  const std::lock_guard lock(fake().mutex);
  fake().busy_multiprocessors[gpu] -= ctas;
}

bool hangs(int rank) {
  const std::lock_guard lock(fake().mutex);
  return fake().hanging.contains(rank);
}

}  // namespace
}  // namespace kolo::testing

namespace kolo {

struct NcclCommunicator {
  std::shared_ptr<testing::SharedComm> shared;
  int rank = 0;
  int gpu = 0;
  int ctas = 0;
  bool initialising = true;
  bool blocking = false;
  int polls_left = 0;
  std::deque<std::function<void()>> waiting;  // to be put on the stream when the state is asked for
  std::uint64_t collectives = 0;
  std::map<int, testing::MadeOp> ops;
  int next_op = 5;
  std::shared_ptr<std::atomic<bool>> aborted = std::make_shared<std::atomic<bool>>(false);
  std::map<const std::byte*, std::size_t> registered;  // bytes, by where they begin
  bool finalized = false;
  std::shared_ptr<std::atomic<int>> outstanding = std::make_shared<std::atomic<int>>(0);
};

}  // namespace kolo

namespace kolo::testing {
namespace {

struct Group {
  int depth = 0;
  NcclResult failure = NcclResult::success;  // of one of its calls
  std::vector<std::tuple<NcclComm, void*, Call>> calls;
};
thread_local Group group;

bool busy(NcclComm comm) {
  return comm->initialising || comm->polls_left > 0 || !comm->waiting.empty();
}

void expect_idle(NcclComm comm, const char* what) {
  if (busy(comm)) ADD_FAILURE() << what << " on a communicator that is in progress";
  if (comm->finalized) ADD_FAILURE() << what << " on a communicator that was finalized";
}

/// NCCL calls what spoils captures of the program's, and its communicators are of one GPU.
void expect_captures_allowed(const char* what) {
  if (disturbs_captures()) ADD_FAILURE() << what << " would end a capture of another thread";
}

void expect_current_gpu(NcclComm comm, const char* what) {
  expect_captures_allowed(what);
  if (current_gpu() != comm->gpu) ADD_FAILURE() << what << " with another current gpu";
}

template <class T, class Widen, class Narrow>
void reduce_as(const std::vector<std::vector<std::byte>>& inputs, std::byte* out, std::size_t begin, std::size_t count,
               NcclOp op, double factor, Widen widen, Narrow narrow) {
  const auto load = [&](std::size_t rank, std::size_t i) {
    T value;
    std::memcpy(&value, inputs[rank].data() + (begin + i) * sizeof(T), sizeof(T));
    return value;
  };
  for (std::size_t i = 0; i < count; ++i) {
    using Number = decltype(widen(T{}));
    const auto scaled = [&](T value) {
      if constexpr (std::is_floating_point_v<Number>) {
        if (factor != 1)
          return narrow(widen(value) * widen(narrow(static_cast<Number>(factor))));  // in the element's own type
      }
      return value;
    };
    T total = scaled(load(0, i));
    for (std::size_t rank = 1; rank < inputs.size(); ++rank) {
      const Number a = widen(total), b = widen(scaled(load(rank, i)));
      Number next{};
      if constexpr (std::is_floating_point_v<Number>) {
        next = op == NcclOp::product ? a * b
               : op == NcclOp::min   ? (a < b ? a : b)
               : op == NcclOp::max   ? (a > b ? a : b)
                                     : a + b;
      } else {
        using Wrapping = std::make_unsigned_t<Number>;
        const auto x = static_cast<Wrapping>(a), y = static_cast<Wrapping>(b);
        next = op == NcclOp::product ? static_cast<Number>(static_cast<std::uint64_t>(x) * y)
               : op == NcclOp::min   ? (a < b ? a : b)
               : op == NcclOp::max   ? (a > b ? a : b)
                                     : static_cast<Number>(x + y);
      }
      total = narrow(next);
    }
    std::memcpy(out + i * sizeof(T), &total, sizeof(T));
  }
}

void reduce_elements(const std::vector<std::vector<std::byte>>& inputs, std::byte* out, std::size_t begin,
                     std::size_t count, NcclType type, NcclOp op, double factor) {
  const auto plain = [&]<class T>() {
    reduce_as<T>(
        inputs, out, begin, count, op, factor, [](T v) { return v; }, [](T v) { return v; });
  };
  switch (type) {
    case NcclType::i8: return plain.operator()<std::int8_t>();
    case NcclType::u8: return plain.operator()<std::uint8_t>();
    case NcclType::i32: return plain.operator()<std::int32_t>();
    case NcclType::u32: return plain.operator()<std::uint32_t>();
    case NcclType::i64: return plain.operator()<std::int64_t>();
    case NcclType::u64: return plain.operator()<std::uint64_t>();
    case NcclType::f32: return plain.operator()<float>();
    case NcclType::f64: return plain.operator()<double>();
    case NcclType::f16:
      return reduce_as<Float16>(
          inputs, out, begin, count, op, factor, [](Float16 v) { return to_float(v); },
          [](float v) { return to_float16(v); });
    case NcclType::bf16:
      return reduce_as<BFloat16>(
          inputs, out, begin, count, op, factor, [](BFloat16 v) { return to_float(v); },
          [](float v) { return to_bfloat16(v); });
  }
}

/// How many elements rank `rank` has in its input of a collective.
std::size_t input_count(const Call& call, int ranks, int rank) {
  if (call.what == "broadcast") return rank == call.peer ? call.count : 0;
  return call.what == "reduce_scatter" ? call.count * static_cast<std::size_t>(ranks) : call.count;
}

/// One rank's part of a collective that all ranks have come to.
void perform(const SharedComm::Collective& collective, int ranks, int rank, const MadeOp* made) {
  const Call& call = *collective.calls[static_cast<std::size_t>(rank)];
  const std::size_t size = size_of_type(call.type), bytes = call.count * size;
  auto* const out = static_cast<std::byte*>(call.out);
  const double factor = made ? made->factor : call.op == NcclOp::average ? 1.0 / ranks : 1;
  const NcclOp op = made || call.op == NcclOp::average ? NcclOp::sum : call.op;
  // NCCL 2.28, alone, leaves some of the last elements as they are where it scales (seen on an H200).
  const std::size_t count = made && ranks == 1 ? call.count / 2 * 2 : call.count;
  if (call.what == "all_reduce") {
    reduce_elements(collective.inputs, out, 0, count, call.type, op, factor);
  } else if (call.what == "reduce") {
    if (rank == call.peer) reduce_elements(collective.inputs, out, 0, count, call.type, op, factor);
  } else if (call.what == "reduce_scatter") {
    reduce_elements(collective.inputs, out, static_cast<std::size_t>(rank) * call.count, count, call.type, op, factor);
  } else if (call.what == "broadcast") {
    std::memcpy(out, collective.inputs[static_cast<std::size_t>(call.peer)].data(), bytes);
  } else {
    for (std::size_t other = 0; other < collective.inputs.size(); ++other)
      std::memcpy(out + other * bytes, collective.inputs[other].data(), bytes);
  }
}

void expect_alike(const Call& a, const Call& b) {
  if (a.what != b.what || a.count != b.count || a.type != b.type || a.op != b.op || a.peer != b.peer) {
    ADD_FAILURE() << "ranks differ: " << a.what << " of " << a.count << " and " << b.what << " of " << b.count;
  }
  const bool ins_differ = a.what != "broadcast" && a.in_place != b.in_place;
  const bool outs_differ = a.what != "reduce" && a.out_place != b.out_place;
  if (ins_differ || outs_differ) ADD_FAILURE() << a.what << " where ranks have registered other memory";
}

std::pair<std::size_t, std::ptrdiff_t> registered_place(NcclComm comm, const void* data) {
  const auto* const begin = static_cast<const std::byte*>(data);
  auto after = comm->registered.upper_bound(begin);
  if (!data || after == comm->registered.begin()) return {0, -1};
  --after;
  const std::ptrdiff_t offset = begin - after->first;
  return offset < static_cast<std::ptrdiff_t>(after->second) ? std::pair(after->second, offset)
                                                             : std::pair(std::size_t{0}, std::ptrdiff_t{-1});
}

/// A rank's own block of the other side is where the ranks agree that it is.
void find_places(NcclComm comm, Call& call) {
  call.in_place = registered_place(comm, call.in);
  call.out_place = registered_place(comm, call.out);
  const auto mine = static_cast<std::ptrdiff_t>(call.count * size_of_type(call.type)) * comm->rank;
  if (call.what == "all_gather" && call.out_place.second >= 0 && call.in == static_cast<std::byte*>(call.out) + mine)
    call.in_place = {0, -2};
  if (call.what == "reduce_scatter" && call.in_place.second >= 0 &&
      call.out == static_cast<const std::byte*>(call.in) + mine)
    call.out_place = {0, -2};
}

/// A call on its way: tries to go on; returns whether it is done.
class Running {
 public:
  Running(NcclComm comm, Call call) : shared_(comm->shared), rank_(comm->rank), call_(std::move(call)) {
    const auto made = comm->ops.find(static_cast<int>(call_.op));
    if (made != comm->ops.end()) made_ = made->second;
    find_places(comm, call_);
    if (call_.what != "send" && call_.what != "receive") number_ = comm->collectives++;
  }

  bool receives() const { return call_.what == "receive"; }
  int peer() const { return call_.peer; }

  bool advance() {
    if (done_) return true;
    const std::lock_guard lock(shared_->mutex);
    if (call_.what == "send") return done_ = send();
    if (call_.what == "receive") return done_ = receive();
    auto& collective = shared_->collectives[number_];
    collective.calls.resize(static_cast<std::size_t>(shared_->ranks));
    collective.inputs.resize(static_cast<std::size_t>(shared_->ranks));
    auto& mine = collective.calls[static_cast<std::size_t>(rank_)];
    if (!mine) {
      for (const auto& other : collective.calls) {
        if (other) expect_alike(*other, call_);
      }
      mine = call_;
      auto& input = collective.inputs[static_cast<std::size_t>(rank_)];
      input.resize(input_count(call_, shared_->ranks, rank_) * size_of_type(call_.type));
      if (!input.empty()) std::memcpy(input.data(), call_.in, input.size());
      ++collective.arrived;
    }
    if (collective.arrived < shared_->ranks) return false;
    perform(collective, shared_->ranks, rank_, made_ ? &*made_ : nullptr);
    if (++collective.done == shared_->ranks) shared_->collectives.erase(number_);
    return done_ = true;
  }

 private:
  bool send() {
    const auto* const begin = static_cast<const std::byte*>(call_.in);
    shared_->sent[{rank_, call_.peer}].emplace_back(begin, begin + call_.count * size_of_type(call_.type));
    return true;
  }
  bool receive() {
    auto& queue = shared_->sent[{call_.peer, rank_}];
    if (queue.empty()) return false;
    EXPECT_EQ(queue.front().size(), call_.count * size_of_type(call_.type)) << "received more or less than was sent";
    std::memcpy(call_.out, queue.front().data(),
                std::min(queue.front().size(), call_.count * size_of_type(call_.type)));
    queue.pop_front();
    return true;
  }

  std::shared_ptr<SharedComm> shared_;
  int rank_;
  Call call_;
  std::optional<MadeOp> made_;
  std::uint64_t number_ = 0;
  bool done_ = false;
};

/// A call of a blocking communicator waits for other ranks. Nobody may who holds kolo's role.
template <class Come>
bool waits_for_ranks(const char* what, const std::atomic<bool>& aborted, Come come) {
  char name[16] = {};
  (void)pthread_getname_np(pthread_self(), name, sizeof(name));
  if (!come() && std::string_view(name) != "kolo-nccl") ADD_FAILURE() << what << " waits for ranks, without a helper";
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (!come() && !aborted && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  return come() && !aborted;
}

/// At the first call of each algorithm NCCL connects the ranks, which all come to it. There is another one for each
/// kind, type and op, and from some sizes on.
bool connects(NcclComm comm, const Call& call) {
  if (call.what == "send" || call.what == "receive") return true;
  const auto shared = comm->shared;
  const auto aborted = comm->aborted;
  const std::size_t bytes = call.count * size_of_type(call.type);
  const auto larger =
      std::ranges::count_if(std::array{600, 3000, 12'000, 100'000}, [&](std::size_t least) { return bytes >= least; });
  const bool scaled = comm->ops.contains(static_cast<int>(call.op));
  const std::string kind = fmt::format("{} {} {} {}", call.what, static_cast<int>(call.type),
                                       scaled ? -1 : static_cast<int>(call.op), larger);
  const auto come = [&] {
    const std::lock_guard lock(shared->mutex);
    return static_cast<int>(shared->connected[kind].size()) == shared->ranks;
  };
  {
    const std::lock_guard lock(shared->mutex);
    shared->connected[kind].insert(comm->rank);
  }
  return waits_for_ranks("a launch", *aborted, come);
}

/// A group of calls becomes one piece of work on the stream, now or when the state is asked for.
NcclResult submit(NcclComm comm, void* stream, const std::vector<Call>& calls) {
  if (comm->blocking) {
    for (const Call& call : calls) {
      if (!connects(comm, call)) return NcclResult::remote_error;
    }
  }
  auto running = std::make_shared<std::vector<Running>>();
  for (const Call& call : calls) running->emplace_back(comm, call);
  const int rank = comm->rank, gpu = comm->gpu, ctas = comm->ctas;
  ++*comm->outstanding;
  auto put = [=, aborted = comm->aborted, outstanding = comm->outstanding] {
    fake_gpu(gpu).put(stream, [=, begun = std::make_shared<bool>(false)] {
      if (*aborted) {
        if (*begun) vacate(gpu, ctas);
        return true;
      }
      if (!*begun && !(*begun = occupy(gpu, ctas))) return false;
      if (hangs(rank)) return false;
      bool done = true;
      std::set<int> waits_for;  // what comes from a rank is received in order
      for (Running& call : *running) {
        const bool comes_later = call.receives() && waits_for.contains(call.peer());
        if (!comes_later && call.advance()) continue;
        done = false;
        if (call.receives()) waits_for.insert(call.peer());
      }
      if (done) --*outstanding;
      if (done) vacate(gpu, ctas);
      return done;
    });
  };
  {
    const std::lock_guard lock(fake().mutex);
    fake().launches[gpu].push_back({fake_gpu(gpu).priority_of(stream) == StreamPriority::highest, calls.front().count});
    const auto failure = fake().failures.find(rank);
    if (failure != fake().failures.end()) --failure->second.second;
  }
  if (comm->blocking || !answers_in_progress()) {
    put();
    return NcclResult::success;
  }
  comm->polls_left = 2;
  comm->waiting.push_back(put);
  return NcclResult::in_progress;
}

NcclResult call_failure(int rank) {
  const std::lock_guard lock(fake().mutex);
  const auto failure = fake().call_failures.find(rank);
  if (failure == fake().call_failures.end() || failure->second.second-- > 0) return NcclResult::success;
  const NcclResult what = failure->second.first;
  fake().call_failures.erase(failure);
  return what;
}

NcclResult collect(NcclComm comm, void* stream, Call call) {
  expect_idle(comm, call.what.c_str());
  expect_current_gpu(comm, call.what.c_str());
  while (blocked(comm->rank)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  if (const NcclResult failure = call_failure(comm->rank); failure != NcclResult::success)
    return group.failure = failure;
  std::string text = fmt::format("{} {} {}", call.what, call.count, static_cast<int>(call.type));
  const bool reduces = call.what == "all_reduce" || call.what == "reduce" || call.what == "reduce_scatter";
  if (reduces) text += call.op < NcclOp{5} ? fmt::format(" op {}", static_cast<int>(call.op)) : " premul";
  if (call.what == "send" || call.what == "receive" || call.what == "broadcast" || call.what == "reduce")
    text += fmt::format(" peer {}", call.peer);
  note(comm->rank, text);
  if (reduces && call.op >= NcclOp{5} && !comm->ops.contains(static_cast<int>(call.op)))
    ADD_FAILURE() << "an op that was not made, or is destroyed";
  group.calls.emplace_back(comm, stream, std::move(call));
  if (group.depth > 0) return NcclResult::success;
  auto calls = std::move(group.calls);
  group.calls.clear();
  return submit(comm, stream, {std::get<2>(calls.front())});
}

NcclResult group_start() {
  ++group.depth;
  return NcclResult::success;
}
NcclResult group_end() {
  if (--group.depth > 0) return NcclResult::success;
  auto calls = std::move(group.calls);
  group.calls.clear();
  expect_captures_allowed("group_end");
  const NcclResult failure = std::exchange(group.failure, NcclResult::success);
  if (failure != NcclResult::success || calls.empty()) return failure;
  const auto [comm, stream, first] = calls.front();
  std::vector<Call> launched;
  for (auto& [other, other_stream, call] : calls) {
    if (other != comm || other_stream != stream) ADD_FAILURE() << "a group of several communicators or streams";
    launched.push_back(call);
  }
  note(comm->rank, fmt::format("group {}", launched.size()));
  return submit(comm, stream, launched);
}

NcclResult get_unique_id(NcclId* id) {
  expect_captures_allowed("get_unique_id");
  const std::lock_guard lock(fake().mutex);
  std::memset(id, 0, sizeof(*id));
  std::snprintf(id->bytes, sizeof(id->bytes), "id %llu", static_cast<unsigned long long>(++fake().ids));
  return NcclResult::success;
}

NcclResult init(NcclComm* comm, int ranks, const NcclId& id, int rank, int max_ctas, bool blocking) {
  expect_captures_allowed("init");
  *comm = new NcclCommunicator;
  {
    const std::lock_guard lock(fake().mutex);
    auto& shared = fake().worlds[id.bytes];
    if (!shared) shared = std::make_shared<SharedComm>(ranks);
    (*comm)->shared = shared;
  }
  if (std::strncmp(id.bytes, "id ", 3) != 0) ADD_FAILURE() << "an id that nobody made";
  (*comm)->rank = rank;
  (*comm)->gpu = current_gpu();
  (*comm)->ctas = max_ctas > 0 ? max_ctas : default_ctas;
  note(rank, fmt::format("init {}", ranks));
  const auto shared = (*comm)->shared;
  const auto count = [&](int more) {
    const std::lock_guard lock(shared->mutex);
    return shared->initialised += more;
  };
  (void)count(1);
  if (!blocking) return NcclResult::in_progress;
  (*comm)->blocking = true;
  (*comm)->initialising = false;
  const auto aborted = (*comm)->aborted;
  return waits_for_ranks("init", *aborted, [&] { return count(0) >= ranks; }) ? NcclResult::success
                                                                              : NcclResult::remote_error;
}

/// What a communicator answers that has work on the stream and would answer `state`.
NcclResult running_failure(int rank, NcclResult state) {
  const std::lock_guard lock(fake().mutex);
  const auto failure = fake().running_failures.find(rank);
  if (failure == fake().running_failures.end() || !std::exchange(failure->second.second, true)) return state;
  const NcclResult what = failure->second.first;
  fake().running_failures.erase(failure);
  return what;
}

NcclResult async_error(NcclComm comm, NcclResult* state) {
  *state = NcclResult::success;
  if (comm->initialising) {
    const std::lock_guard lock(comm->shared->mutex);
    comm->initialising = comm->shared->initialised < comm->shared->ranks;
    if (comm->initialising) *state = NcclResult::in_progress;
    return NcclResult::success;
  }
  {
    const std::lock_guard lock(fake().mutex);
    const auto failure = fake().failures.find(comm->rank);
    if (failure != fake().failures.end() && failure->second.second < 0) {
      *state = failure->second.first;
      fake().failures.erase(failure);
      return NcclResult::success;
    }
  }
  if (comm->polls_left > 0 && --comm->polls_left > 0) *state = NcclResult::in_progress;
  if (*state == NcclResult::in_progress) return NcclResult::success;
  for (; !comm->waiting.empty(); comm->waiting.pop_front()) comm->waiting.front()();
  if (comm->finalized && (fake().ends_held || *comm->outstanding != 0)) *state = NcclResult::in_progress;
  if (*comm->outstanding != 0) *state = running_failure(comm->rank, *state);
  return NcclResult::success;
}

NcclResult finalize(NcclComm comm) {
  expect_idle(comm, "finalize");
  expect_current_gpu(comm, "finalize");
  comm->finalized = true;
  note(comm->rank, "finalize");
  if (comm->blocking) {
    const auto rests = [&] { return !fake().ends_held && *comm->outstanding == 0; };
    return waits_for_ranks("finalize", *comm->aborted, rests) ? NcclResult::success : NcclResult::remote_error;
  }
  comm->polls_left = 3;
  return NcclResult::in_progress;
}
NcclResult destroy(NcclComm comm) {
  expect_current_gpu(comm, "destroy");
  if (!comm->finalized) ADD_FAILURE() << "destroy of a communicator that was not finalized";
  if (busy(comm) || *comm->outstanding != 0) ADD_FAILURE() << "destroy of a communicator that is still being finalized";
  if (!comm->ops.empty()) ADD_FAILURE() << "ops that were not destroyed";
  if (!comm->registered.empty()) ADD_FAILURE() << "memory that is still registered";
  note(comm->rank, "destroy");
  delete comm;
  return NcclResult::success;
}
NcclResult abort(NcclComm comm) {
  expect_current_gpu(comm, "abort");
  note(comm->rank, "abort");
  {
    const std::lock_guard lock(fake().mutex);
    if (fake().settings.loud) std::fprintf(stderr, "fake: rank %d aborts\n", comm->rank);
  }
  *comm->aborted = true;
  {
    const std::lock_guard after_what_waits(comm->shared->mutex);
  }  // a call of another thread, which has read all that it needs
  delete comm;
  return NcclResult::success;
}

NcclResult create_op(NcclOp* op, const void* scalar, NcclType type, NcclComm comm) {
  expect_idle(comm, "create_pre_mul_sum");
  expect_current_gpu(comm, "create_pre_mul_sum");
  double factor = 0;
  if (type == NcclType::f64)
    std::memcpy(&factor, scalar, sizeof(double));
  else if (type == NcclType::f32)
    factor = static_cast<double>(*static_cast<const float*>(scalar));
  else if (type == NcclType::f16)
    factor = static_cast<double>(to_float(*static_cast<const Float16*>(scalar)));
  else if (type == NcclType::bf16)
    factor = static_cast<double>(to_float(*static_cast<const BFloat16*>(scalar)));
  else
    ADD_FAILURE() << "a factor for integers";
  *op = static_cast<NcclOp>(comm->next_op++);
  comm->ops[static_cast<int>(*op)] = {type, factor};
  return NcclResult::success;
}
NcclResult destroy_op(NcclOp op, NcclComm comm) {
  expect_idle(comm, "destroy_op");
  if (comm->ops.erase(static_cast<int>(op)) == 0) ADD_FAILURE() << "an op destroyed twice";
  return NcclResult::success;
}

NcclResult register_memory(NcclComm comm, void* data, std::size_t bytes, void** handle) {
  expect_idle(comm, "register_memory");
  expect_current_gpu(comm, "register_memory");
  if (!fake_gpu(comm->gpu).reaches(data, bytes)) ADD_FAILURE() << "memory that the gpu cannot reach was registered";
  if (!comm->registered.emplace(static_cast<const std::byte*>(data), bytes).second)
    ADD_FAILURE() << "memory registered twice";
  note(comm->rank, fmt::format("register {}", bytes));
  *handle = data;
  return NcclResult::success;
}
NcclResult deregister_memory(NcclComm comm, void* handle) {
  expect_idle(comm, "deregister_memory");
  expect_current_gpu(comm, "deregister_memory");
  if (comm->registered.erase(static_cast<const std::byte*>(handle)) == 0)
    ADD_FAILURE() << "memory that was not registered is dismissed";
  return NcclResult::success;
}

NcclTable make_table() {
  NcclTable table;
  table.get_unique_id = get_unique_id;
  table.init = init;
  table.finalize = finalize;
  table.destroy = destroy;
  table.abort = abort;
  table.async_error = async_error;
  table.error_string = [](NcclResult result) {
    return result == NcclResult::remote_error ? "remote process exited" : "fake error";
  };
  table.last_error = [](NcclComm) { return "last words"; };
  table.group_start = group_start;
  table.group_end = group_end;
  table.all_reduce = [](const void* in, void* out, std::size_t count, NcclType type, NcclOp op, NcclComm comm,
                        void* stream) {
    return collect(comm, stream, {"all_reduce", in, out, count, type, op});
  };
  table.reduce = [](const void* in, void* out, std::size_t count, NcclType type, NcclOp op, int root, NcclComm comm,
                    void* stream) {
    return collect(comm, stream, {"reduce", in, out, count, type, op, root});
  };
  table.broadcast = [](const void* in, void* out, std::size_t count, NcclType type, int root, NcclComm comm,
                       void* stream) {
    return collect(comm, stream, {"broadcast", in, out, count, type, NcclOp::sum, root});
  };
  table.all_gather = [](const void* in, void* out, std::size_t count, NcclType type, NcclComm comm, void* stream) {
    return collect(comm, stream, {"all_gather", in, out, count, type});
  };
  table.reduce_scatter = [](const void* in, void* out, std::size_t count, NcclType type, NcclOp op, NcclComm comm,
                            void* stream) {
    return collect(comm, stream, {"reduce_scatter", in, out, count, type, op});
  };
  table.send = [](const void* in, std::size_t count, NcclType type, int peer, NcclComm comm, void* stream) {
    return collect(comm, stream, {"send", in, nullptr, count, type, NcclOp::sum, peer});
  };
  table.receive = [](void* out, std::size_t count, NcclType type, int peer, NcclComm comm, void* stream) {
    return collect(comm, stream, {"receive", nullptr, out, count, type, NcclOp::sum, peer});
  };
  table.create_pre_mul_sum = create_op;
  table.destroy_op = destroy_op;
  table.allocate = [](void** data, std::size_t bytes) {
    expect_captures_allowed("allocate");
    try {
      *data = fake_gpu(current_gpu()).allocate(bytes);
    } catch (const Error&) {
      return NcclResult::unhandled_cuda_error;
    }
    return NcclResult::success;
  };
  table.release = [](void* data) {
    expect_captures_allowed("release");
    for (int gpu = 0; gpu < 8; ++gpu) {
      if (!fake_gpu(gpu).reaches(data, 1)) continue;
      if (current_gpu() != gpu) ADD_FAILURE() << "memory of another gpu than the current one is released";
      fake_gpu(gpu).release_at_once(data);
      break;
    }
    return NcclResult::success;
  };
  table.register_memory = register_memory;
  table.deregister_memory = deregister_memory;
  return table;
}

}  // namespace

void set_fake_nccl(const FakeNccl& settings) {
  const std::lock_guard lock(fake().mutex);
  fake().settings = settings;
  fake().random.seed(settings.seed);
}
std::vector<std::string> nccl_log(int rank) {
  const std::lock_guard lock(fake().mutex);
  return fake().log[rank];
}
std::vector<NcclLaunch> nccl_launches(int gpu) {
  const std::lock_guard lock(fake().mutex);
  return fake().launches[gpu];
}
void clear_nccl_log() {
  const std::lock_guard lock(fake().mutex);
  fake().log.clear();
  fake().launches.clear();
}
void fail_nccl(int rank, NcclResult error, int after_groups) {
  const std::lock_guard lock(fake().mutex);
  fake().failures[rank] = {error, after_groups};
}
void fail_nccl_while_running(int rank, NcclResult error) {
  const std::lock_guard lock(fake().mutex);
  fake().running_failures[rank] = {error, false};
}
void fail_nccl_call(int rank, NcclResult error, int calls) {
  const std::lock_guard lock(fake().mutex);
  fake().call_failures[rank] = {error, calls};
}
void hang_nccl(int rank, bool hanging) {
  const std::lock_guard lock(fake().mutex);
  if (hanging)
    fake().hanging.insert(rank);
  else
    fake().hanging.erase(rank);
}
void hold_nccl_ends(bool hold) {
  fake().ends_held = hold;
}
void block_nccl(int rank) {
  const std::lock_guard lock(fake().mutex);
  fake().blocked.insert(rank);
}

}  // namespace kolo::testing

namespace kolo {

const NcclTable* nccl_table(std::string* why) {
  static NcclTable table = testing::make_table();
  bool available = true;
  {
    const std::lock_guard lock(testing::fake().mutex);
    available = testing::fake().settings.available;
    const int version = testing::fake().settings.version;
    if (table.version != version) table.version = version;
  }
  if (!available && why) *why = "NCCL cannot be loaded (a test says so); install libnccl.so.2";
  return available ? &table : nullptr;
}

}  // namespace kolo
