#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>

namespace kolo {

/// When the background thread naps instead of having itself rung, since a thread of the program has driven and will
/// mostly come again: after each nap it glances whether one has. If it has, and has left nothing in flight, everything
/// stays with the program, and the next nap is twice as long, up to a limit: the system adds 50 us to each, and a
/// glance keeps a core for some 25.
class Glances {
 public:
  /// By a thread that has driven, before it looks whether the background thread will see that. `left`: operations are
  /// in flight. Those wait for the shortest naps only.
  void note_driven(bool left) {
    if (left) left_ = true;
    driven_ = true;
  }
  bool will_see(bool left) const {
    const auto nap = nap_.load();
    return nap > none && (!left || nap == shortest);
  }

  // By the background thread.
  /// Whether the program has driven since the last time: then it naps.
  bool begin() {
    const bool driven = driven_.exchange(false);
    looks_ = left_.exchange(false);
    if (looks_ || !driven) next_ = shortest;
    nap_ = driven ? next_ : none;
    return driven;
  }
  /// After begin(): whether the program has left something.
  bool looks() const { return looks_; }
  std::chrono::nanoseconds nap() const { return next_; }
  /// Before it sleeps, and after that.
  void sleeps() {
    if (nap_.load() > none) next_ = std::min(2 * next_, longest);
  }
  void end() { nap_ = none; }

 private:
  static constexpr std::chrono::nanoseconds none{0}, shortest = std::chrono::microseconds(50),
                                                     longest = std::chrono::milliseconds(1);
  std::atomic<bool> driven_{false}, left_{false};
  std::atomic<std::chrono::nanoseconds> nap_{none};  // that it takes
  std::chrono::nanoseconds next_ = shortest;
  bool looks_ = false;
};

}  // namespace kolo
