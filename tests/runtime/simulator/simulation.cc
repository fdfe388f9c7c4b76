#include "tests/runtime/simulator/simulation.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdarg>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <stdexcept>
#include <utility>
#include <vector>

namespace kolo::testing {
namespace {

using Nanoseconds = std::uint64_t;

constexpr std::size_t stack_bytes = 512 << 10;
constexpr Nanoseconds never = ~Nanoseconds{0};
constexpr Nanoseconds start_of_time = 1'000'000'000'000;  // a clock that is at 0 would be taken for none
constexpr Nanoseconds call_time = 100, clock_time = 1000;
constexpr pthread_t first_thread = 1000;  // as libc's name of it

struct ExceptionsInFlight {  // of the C++ runtime, one for each thread
  void* caught;
  unsigned uncaught;
};

ExceptionsInFlight& exceptions_in_flight() {
  return *reinterpret_cast<ExceptionsInFlight*>(abi::__cxa_get_globals());
}

/// Memory for stacks, kept for the next simulation.
class Stacks {
 public:
  void* take() {
    if (spare_.empty()) {
      void* const stack = ::mmap(nullptr, stack_bytes, PROT_READ | PROT_WRITE,
                                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
      if (stack == MAP_FAILED) throw std::bad_alloc();
      return stack;
    }
    void* const stack = spare_.back();
    spare_.pop_back();
    return stack;
  }
  void give_back(void* stack) { spare_.push_back(stack); }

 private:
  std::vector<void*> spare_;
};

Stacks stacks;

struct Fiber {
  std::size_t number = 0;
  int rank = -1;
  int rank_to_start = -1;
  std::function<void*()> work;
  void* result = nullptr;
  ucontext_t context{};
  void* stack = nullptr;
  ExceptionsInFlight exceptions{};
  bool done = false;
  bool ready = true;
  const void* waits_on = nullptr;  // a mutex, condition variable, futex or fiber
  const char* waits_for = "";
  Nanoseconds wake_at = never;  // if it waits, at the latest
  bool timed_out = false;
};

/// While one lives, what runs is the simulation itself, in the thread that it has interrupted.
class Works {
 public:
  Works() : before_(std::exchange(any, true)) {}
  ~Works() { any = before_; }
  Works(const Works&) = delete;
  Works& operator=(const Works&) = delete;

  static inline bool any = false;

 private:
  const bool before_;
};

class Simulation {
 public:
  Simulation(std::uint64_t seed, Nanoseconds limit) : random_(seed), limit_(start_of_time + limit) {}

  Simulated run(const std::function<void()>& program) {
    add([&program]() -> void* {
      program();
      return nullptr;
    });
    const ExceptionsInFlight before = exceptions_in_flight();
    if (Fiber* const first = next()) switch_to(*first, host_);
    exceptions_in_flight() = before;
    Simulated result{.hung = !ended_ && !fibers_.front()->done,
                     .ended = ended_,
                     .threads = "",
                     .waiting = {},
                     .time = std::chrono::nanoseconds(now_ - start_of_time),
                     .switches = switches_};
    if (result.hung) result.threads = describe();
    for (const auto& fiber : fibers_) {
      if (result.hung && !fiber->done) result.waiting.push_back(fiber->rank);
    }
    for (auto& fiber : fibers_) {
      if (fiber->done) stacks.give_back(fiber->stack);
    }
    return result;
  }

  Fiber& current() { return *current_; }

  std::size_t add(std::function<void*()> work) {
    const Works works;
    auto fiber = std::make_unique<Fiber>();
    fiber->number = fibers_.size();
    if (current_) fiber->rank = current_->rank_to_start >= 0 ? current_->rank_to_start : current_->rank;
    if (current_) current_->rank_to_start = -1;
    fiber->work = std::move(work);
    fiber->stack = stacks.take();
    ::getcontext(&fiber->context);
    fiber->context.uc_stack = {fiber->stack, 0, stack_bytes};
    ::makecontext(&fiber->context, &Simulation::enter, 0);
    ready_.push_back(fiber.get());
    fibers_.push_back(std::move(fiber));
    return fibers_.back()->number;
  }

  Fiber& fiber(std::size_t number) { return *fibers_.at(number); }

  /// A call during which a little time passes, and another thread may go on.
  void pass(Nanoseconds time) {
    if (Works::any) return;  // an action, in no thread
    now_ += time;
    if (random_() % 4 == 0) yield();
  }

  void yield() {
    put_to_ready(*current_);
    reschedule();
  }

  /// Waits until another fiber wakes this, or the time has come. Returns false in that case.
  bool wait(const void* on, const char* what, Nanoseconds until) {
    Fiber& me = *current_;
    me.ready = me.timed_out = false;
    me.waits_on = on;
    me.waits_for = what;
    me.wake_at = until;
    put_to_waiting(me);
    reschedule();
    return !me.timed_out;
  }

  int wake(const void* on, int most) {
    const Works works;
    const auto found = waiting_.find(on);
    if (found == waiting_.end()) return 0;
    int woken = 0;
    while (!found->second.empty() && woken < most) {
      const auto chosen = random_() % found->second.size();
      Fiber& fiber = *found->second[chosen];
      found->second.erase(found->second.begin() + static_cast<std::ptrdiff_t>(chosen));
      make_ready(fiber);
      ++woken;
    }
    if (found->second.empty()) waiting_.erase(found);
    return woken;
  }

  void freeze(int rank, Nanoseconds until) { frozen_[rank] = until; }
  void at(Nanoseconds time, std::function<void()> action) {
    const Works works;
    actions_.emplace(time, std::move(action));
  }
  Nanoseconds now() const { return now_; }
  void end() {
    ended_ = true;
    reschedule();
  }

 private:
  static void enter() noexcept;

  void put_to_ready(Fiber& fiber) {
    const Works works;
    ready_.push_back(&fiber);
  }
  void put_to_waiting(Fiber& fiber) {
    const Works works;
    waiting_[fiber.waits_on].push_back(&fiber);
    if (fiber.wake_at != never) timers_.insert({fiber.wake_at, fiber.number});
  }

  void make_ready(Fiber& fiber) {
    if (fiber.wake_at != never) timers_.erase({fiber.wake_at, fiber.number});
    fiber.wake_at = never;
    fiber.ready = true;
    fiber.waits_on = nullptr;
    ready_.push_back(&fiber);
  }

  void wake_sleepers() {
    while (!actions_.empty() && actions_.begin()->first <= now_) {
      const auto action = std::move(actions_.begin()->second);
      actions_.erase(actions_.begin());
      action();
    }
    while (!timers_.empty() && timers_.begin()->first <= now_) {
      Fiber& fiber = *fibers_[timers_.begin()->second];
      timers_.erase(timers_.begin());
      fiber.wake_at = never;
      if (!fiber.ready) {
        auto& others = waiting_[fiber.waits_on];
        std::erase(others, &fiber);
        if (others.empty()) waiting_.erase(fiber.waits_on);
        fiber.timed_out = true;
      }
      make_ready(fiber);
    }
  }

  /// The one that goes on; null if nobody ever will.
  Fiber* next() {
    const Works works;
    while (now_ < limit_) {
      wake_sleepers();
      while (!ready_.empty()) {
        std::swap(ready_[random_() % ready_.size()], ready_.back());
        Fiber* const chosen = ready_.back();
        ready_.pop_back();
        const auto frozen = frozen_.find(chosen->rank);
        if (chosen->rank < 0 || frozen == frozen_.end() || frozen->second <= now_) return chosen;
        if (frozen->second == never) continue;
        chosen->wake_at = frozen->second;
        timers_.insert({frozen->second, chosen->number});
      }
      Nanoseconds soonest = never;
      if (!timers_.empty()) soonest = timers_.begin()->first;
      if (!actions_.empty()) soonest = std::min(soonest, actions_.begin()->first);
      if (soonest == never) return nullptr;
      now_ = std::max(now_, soonest);
    }
    return nullptr;
  }

  void reschedule() {
    Fiber* const chosen = ended_ || fibers_.front()->done ? nullptr : next();
    Fiber* const me = current_;
    if (chosen == me) return;
    me->exceptions = exceptions_in_flight();
    if (chosen) {
      switch_to(*chosen, me->context);
    } else {
      ::swapcontext(&me->context, &host_);
    }
  }

  void switch_to(Fiber& fiber, ucontext_t& from) {
    ++switches_;
    current_ = &fiber;
    exceptions_in_flight() = fiber.exceptions;
    ::swapcontext(&from, &fiber.context);
  }

  std::string describe() const {
    std::string text;
    for (const auto& fiber : fibers_) {
      if (fiber->done) continue;
      text += "thread " + std::to_string(fiber->number) + " of rank " + std::to_string(fiber->rank) + ": ";
      text += fiber->ready ? "runs" : std::string("waits for ") + fiber->waits_for;
      if (!fiber->ready && fiber->wake_at != never)
        text += " until " + std::to_string((fiber->wake_at - start_of_time) / 1000) + " us";
      text += '\n';
    }
    return text;
  }

  std::mt19937_64 random_;
  Nanoseconds limit_;
  Nanoseconds now_ = start_of_time;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Fiber*> ready_;
  std::map<const void*, std::vector<Fiber*>> waiting_;
  std::set<std::pair<Nanoseconds, std::size_t>> timers_;
  std::multimap<Nanoseconds, std::function<void()>> actions_;
  std::map<int, Nanoseconds> frozen_;  // by rank: until when
  Fiber* current_ = nullptr;
  ucontext_t host_{};
  std::uint64_t switches_ = 0;
  bool ended_ = false;
};

Simulation* simulation = nullptr;

void Simulation::enter() noexcept {
  Fiber& me = simulation->current();
  me.result = me.work();
  me.work = nullptr;
  me.done = true;
  simulation->wake(&me, INT_MAX);
  simulation->reschedule();
}

/// libc's own function of this name, for the time outside simulations.
template <class Function>
Function* libc(Function* ours, const char* name) {
  (void)ours;
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

Nanoseconds nanoseconds(const timespec& time) {
  return static_cast<Nanoseconds>(time.tv_sec) * 1'000'000'000 + static_cast<Nanoseconds>(time.tv_nsec);
}

Nanoseconds after(const timespec* time) {
  if (!time) return never;
  const Nanoseconds now = simulation->now(), sum = now + nanoseconds(*time);
  return sum < now ? never : sum;
}

bool simulated() {
  return simulation != nullptr;
}

void lock(pthread_mutex_t* mutex) {
  static auto* const try_lock = libc(&::pthread_mutex_trylock, "pthread_mutex_trylock");
  while (try_lock(mutex) != 0) simulation->wait(mutex, "a mutex", never);
}

int unlock(pthread_mutex_t* mutex) {
  static auto* const real = libc(&::pthread_mutex_unlock, "pthread_mutex_unlock");
  const int rc = real(mutex);
  if (simulated()) simulation->wake(mutex, 1);
  return rc;
}

int wait_for_condition(pthread_cond_t* condition, pthread_mutex_t* mutex, Nanoseconds until) {
  (void)unlock(mutex);
  const bool woken = simulation->wait(condition, "a condition", until);
  lock(mutex);
  return woken ? 0 : ETIMEDOUT;
}

long futex(const int* word, int operation, int value, const timespec* time) {
  switch (operation & FUTEX_CMD_MASK) {
    case FUTEX_WAKE:
    case FUTEX_WAKE_BITSET: {
      simulation->pass(call_time);  // whoever is about to wake others may be slow
      const int woken = simulation->wake(word, value);
      simulation->pass(call_time);
      return woken;
    }
    default: {
      simulation->pass(call_time);
      if (__atomic_load_n(word, __ATOMIC_SEQ_CST) != value) {
        errno = EAGAIN;
        return -1;
      }
      const bool absolute = (operation & FUTEX_CMD_MASK) == FUTEX_WAIT_BITSET;
      if (simulation->wait(word, "a futex", absolute && time ? nanoseconds(*time) : after(time))) return 0;
      errno = ETIMEDOUT;
      return -1;
    }
  }
}

void sleep_until(Nanoseconds time) {
  (void)simulation->wait(nullptr, "the clock", time);
}

}  // namespace

Simulated simulate(std::uint64_t seed, std::chrono::seconds limit, const std::function<void()>& program) {
  auto mine = std::make_unique<Simulation>(seed, static_cast<Nanoseconds>(std::chrono::nanoseconds(limit).count()));
  simulation = mine.get();
  Simulated result = mine->run(program);
  simulation = nullptr;
  if (result.hung || result.ended) (void)mine.release();  // its threads are still in the middle of something
  return result;
}

void starts_rank(int rank) {
  simulation->current().rank_to_start = rank;
}
int rank_of_thread() {
  return simulation->current().rank;
}
void freeze(int rank, std::chrono::nanoseconds time) {
  simulation->freeze(rank, simulation->now() + static_cast<Nanoseconds>(time.count()));
}
void kill(int rank) {
  simulation->freeze(rank, never);
}
void at(std::chrono::nanoseconds time, std::function<void()> action) {
  simulation->at(start_of_time + static_cast<Nanoseconds>(time.count()), std::move(action));
}
bool simulation_works() {
  return Works::any;
}
void end_simulation() {
  simulation->end();
  std::abort();
}
std::chrono::nanoseconds virtual_time() {
  return std::chrono::nanoseconds(simulation->now() - start_of_time);
}

}  // namespace kolo::testing

// ---- what libc has under the threads of C++ -------------------------------------------------------------------------

using namespace kolo::testing;

extern "C" {

int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*work)(void*), void* argument) {
  static auto* const real = libc(&::pthread_create, "pthread_create");
  if (!simulated()) return real(thread, attributes, work, argument);
  *thread = first_thread + simulation->add([work, argument] { return work(argument); });
  simulation->pass(call_time);
  return 0;
}

int pthread_join(pthread_t thread, void** result) {
  static auto* const real = libc(&::pthread_join, "pthread_join");
  if (!simulated()) return real(thread, result);
  Fiber& other = simulation->fiber(thread - first_thread);
  while (!other.done) simulation->wait(&other, "a thread", never);
  if (result) *result = other.result;
  return 0;
}

int pthread_detach(pthread_t thread) {
  static auto* const real = libc(&::pthread_detach, "pthread_detach");
  return simulated() ? 0 : real(thread);
}

pthread_t pthread_self() noexcept {
  static auto* const real = libc(&::pthread_self, "pthread_self");
  return simulated() ? first_thread + simulation->current().number : real();
}

int pthread_mutex_lock(pthread_mutex_t* mutex) noexcept {
  static auto* const real = libc(&::pthread_mutex_lock, "pthread_mutex_lock");
  if (!simulated()) return real(mutex);
  simulation->pass(call_time);
  lock(mutex);
  return 0;
}

int pthread_mutex_trylock(pthread_mutex_t* mutex) noexcept {
  static auto* const real = libc(&::pthread_mutex_trylock, "pthread_mutex_trylock");
  if (simulated()) simulation->pass(call_time);
  return real(mutex);
}

int pthread_mutex_unlock(pthread_mutex_t* mutex) noexcept {
  const int rc = unlock(mutex);
  if (simulated()) simulation->pass(call_time);
  return rc;
}

int pthread_cond_wait(pthread_cond_t* condition, pthread_mutex_t* mutex) {
  static auto* const real = libc(&::pthread_cond_wait, "pthread_cond_wait");
  return simulated() ? wait_for_condition(condition, mutex, never) : real(condition, mutex);
}

int pthread_cond_timedwait(pthread_cond_t* condition, pthread_mutex_t* mutex, const timespec* until) {
  static auto* const real = libc(&::pthread_cond_timedwait, "pthread_cond_timedwait");
  return simulated() ? wait_for_condition(condition, mutex, nanoseconds(*until)) : real(condition, mutex, until);
}

int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock, const timespec* until) {
  static auto* const real = libc(&::pthread_cond_clockwait, "pthread_cond_clockwait");
  return simulated() ? wait_for_condition(condition, mutex, nanoseconds(*until)) : real(condition, mutex, clock, until);
}

int pthread_cond_signal(pthread_cond_t* condition) noexcept {
  static auto* const real = libc(&::pthread_cond_signal, "pthread_cond_signal");
  return simulated() ? (simulation->wake(condition, 1), 0) : real(condition);
}

int pthread_cond_broadcast(pthread_cond_t* condition) noexcept {
  static auto* const real = libc(&::pthread_cond_broadcast, "pthread_cond_broadcast");
  return simulated() ? (simulation->wake(condition, INT_MAX), 0) : real(condition);
}

int clock_gettime(clockid_t clock, timespec* time) noexcept {
  static auto* const real = libc(&::clock_gettime, "clock_gettime");
  if (!simulated()) return real(clock, time);
  simulation->pass(clock_time);
  *time = {static_cast<time_t>(simulation->now() / 1'000'000'000),
           static_cast<long>(simulation->now() % 1'000'000'000)};
  return 0;
}

int nanosleep(const timespec* time, timespec* left) {
  static auto* const real = libc(&::nanosleep, "nanosleep");
  if (!simulated()) return real(time, left);
  sleep_until(after(time));
  return 0;
}

int clock_nanosleep(clockid_t clock, int flags, const timespec* time, timespec* left) {
  static auto* const real = libc(&::clock_nanosleep, "clock_nanosleep");
  if (!simulated()) return real(clock, flags, time, left);
  sleep_until(flags & TIMER_ABSTIME ? nanoseconds(*time) : after(time));
  return 0;
}

int sched_yield() noexcept {
  static auto* const real = libc(&::sched_yield, "sched_yield");
  if (!simulated()) return real();
  simulation->pass(call_time);
  simulation->yield();
  return 0;
}

long syscall(long number, ...) noexcept {
  static auto* const real = libc(&::syscall, "syscall");
  va_list list;
  va_start(list, number);
  long arguments[6];
  for (long& argument : arguments) argument = va_arg(list, long);
  va_end(list);
  if (simulated() && number == SYS_futex) {
    return futex(reinterpret_cast<const int*>(arguments[0]), static_cast<int>(arguments[1]),
                 static_cast<int>(arguments[2]), reinterpret_cast<const timespec*>(arguments[3]));
  }
  return real(number, arguments[0], arguments[1], arguments[2], arguments[3], arguments[4], arguments[5]);
}

}  // extern "C"
