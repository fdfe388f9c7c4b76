#pragma once

#include <atomic>
#include <mutex>

namespace kolo {

/// The coordinator's role: who has it may run the cycle, one thread at a time. Threads of the program take it for each
/// operation. The background thread does not queue for it, or each of them would have to wake it: it passes by, and who
/// leaves the role sees to it that nothing is left that it came for.
class Role {
 public:
  using Held = std::unique_lock<std::mutex>;

  Held take() { return Held(mutex_); }
  Held try_take() { return {mutex_, std::try_to_lock}; }
  /// For the background thread, which sleeps if it does not get the role.
  Held take_or_pass_by() {
    (void)passed_by_.exchange(true);  // before it finds the role taken: who leaves it looks after that
    Held held = try_take();
    if (held) passed_by_ = false;
    return held;
  }
  /// For the holder, before it looks whether it leaves anything: so it need not tell who has passed by until then.
  void will_look() {
    if (passed_by_) passed_by_ = false;
  }
  /// Returns whether the background thread has passed by, unless the holder has looked since.
  bool leave(Held& held) {
    held.unlock();
    return passed_by_;
  }

 private:
  std::mutex mutex_;
  std::atomic<bool> passed_by_{false};
};

}  // namespace kolo
