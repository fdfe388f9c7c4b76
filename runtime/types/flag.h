#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>
#include <ctime>

namespace kolo {

/// Is set once, by one thread; others look, or sleep until it is. What was written before it was set can be read by who
/// has seen it set.
///
/// Unlike std::atomic's wait() it shares nothing with other flags: who sleeps is known in the flag itself.
class Flag {
 public:
  bool is_set() const { return state_.load(std::memory_order_acquire) == set_state; }
  explicit operator bool() const { return is_set(); }

  void set() {
    if (set_and_wake_later()) wake();
  }
  /// For who sets several flags: whoever wakes may take the processor, and would wait for the next one. Returns whether
  /// wake() must follow.
  [[nodiscard]] bool set_and_wake_later() { return state_.exchange(set_state) == slept_on; }
  void wake() { syscall(SYS_futex, &state_, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0); }

  /// From now on wake() follows when it is set. False if it is set already.
  bool expect() {
    std::uint32_t state = unset;
    return state_.compare_exchange_strong(state, slept_on) || state == slept_on;
  }

  void wait() {
    while (expect()) syscall(SYS_futex, &state_, FUTEX_WAIT_PRIVATE, slept_on, nullptr, nullptr, 0);
  }
  /// The same, but no longer than until then.
  void wait_until(std::chrono::steady_clock::time_point deadline) {
    using namespace std::chrono;
    if (deadline == steady_clock::time_point::max()) return wait();
    for (auto now = steady_clock::now(); now < deadline && expect(); now = steady_clock::now()) {
      const auto left = std::min<nanoseconds>(deadline - now, hours(1)).count();
      const timespec time{static_cast<time_t>(left / 1'000'000'000), static_cast<long>(left % 1'000'000'000)};
      syscall(SYS_futex, &state_, FUTEX_WAIT_PRIVATE, slept_on, &time, nullptr, 0);
    }
  }

 private:
  static constexpr std::uint32_t unset = 0, slept_on = 1, set_state = 2;

  std::atomic<std::uint32_t> state_{unset};
};

}  // namespace kolo
