#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace kolo {

/// One rank's doorbell: wakes whoever acts for the rank, from any rank of the node, and costs no system call while the
/// rank is awake. Lives in a Region; all zeros is "awake". (An event count; the sleeper's and the ringer's sides form
/// the store-load pattern of Dekker, hence sequential consistency.)
///
/// Ringer: make the news visible with a sequentially consistent store or exchange, then ring().
/// Listener: `const auto ticket = doorbell.arm();` look for news once more; then sleep(ticket, …) if there is none;
/// disarm().
class Doorbell {
 public:
  /// Wakes all sleepers if the listener is armed.
  void ring();

  /// Declares that the listener is about to sleep. Returns the ticket for sleep().
  std::uint32_t arm() {
    armed_.store(1, std::memory_order_seq_cst);
    return sequence_.load(std::memory_order_seq_cst);
  }

  /// The same while another thread listens, which arms it before it leaves.
  std::uint32_t ticket() const { return sequence_.load(std::memory_order_seq_cst); }

  /// Sleeps until ring() is called after arm() returned `ticket`, or until `timeout` has passed. Returns false in that
  /// case; true may also be a ring from before, or a signal.
  bool sleep(std::uint32_t ticket, std::chrono::nanoseconds timeout);

  /// Whether it was rung since arm() returned `ticket`, but for rings while it was disarmed.
  bool rung_since(std::uint32_t ticket) const { return sequence_.load(std::memory_order_seq_cst) != ticket; }

  /// The listener is awake: rings need no system call.
  void disarm() { armed_.store(0, std::memory_order_seq_cst); }

 private:
  std::atomic<std::uint32_t> sequence_;
  std::atomic<std::uint32_t> armed_;
  std::uint32_t padding_[14];  // a cache line of its own
};
static_assert(sizeof(Doorbell) == 64 && std::atomic<std::uint32_t>::is_always_lock_free);

}  // namespace kolo
