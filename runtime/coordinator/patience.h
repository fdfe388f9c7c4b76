#pragma once

#include <chrono>
#include <cstddef>
#include <optional>

#include "runtime/negotiation/negotiator.h"

namespace kolo {

class Groups;

/// How long something is borne that may be about to end by itself.
class GracePeriod {
 public:
  using Time = std::chrono::steady_clock::time_point;

  explicit GracePeriod(std::chrono::milliseconds limit) : limit_(limit) {}

  /// Whether it has ended: there is `cause`, and for a while nothing was added. `length` is how much there is.
  bool ended(bool cause, std::size_t length, Time now);
  bool counting() const { return since_.has_value(); }

 private:
  std::chrono::milliseconds limit_;
  std::optional<Time> since_;
  std::size_t length_ = 0;
};

/// When libraries that move data only while they are called are called once more, since operations have become complete
/// here: less and less often, so that a peer that still needs something waits for a quarter longer at most than it had
/// to anyway.
class TrailingProgress {
 public:
  using Time = GracePeriod::Time;

  void begin(Time now);
  bool due(Time now);
  /// Whether a peer that waits may not have had what it needs.
  bool has_begun_lately(Time now) const;
  /// When due() must be called by a thread that sleeps; never, where that is as often as it wakes in any case.
  Time next() const;

 private:
  Time began_{}, next_ = Time::max();
  std::chrono::nanoseconds interval_{0};
};

/// How long a rank bears what keeps others or itself waiting in a group.
struct GroupPatience {
  /// Its run of new names goes on while others wait. 20 ms: longer than the scheduler usually preempts a thread.
  GracePeriod run{std::chrono::milliseconds(20)};
  /// What its program waits for is not agreed. No thread wakes for the end of this.
  GracePeriod wait{std::chrono::seconds(1)};
  /// Others wait for a bucket, whose layout matters, of which its program has submitted a part and adds no more, nor
  /// waits: maybe for those others, otherwise than through kolo. As long as a stall that is reported. Nor for this.
  GracePeriod part{std::chrono::seconds(10)};

  bool counting() const { return run.counting() || wait.counting() || part.counting(); }
};

/// What a rank does about plans that keep programs waiting: it ends runs that others wait for, and splits buckets that
/// a program does not complete while something waits.
class Patience {
 public:
  using Time = GracePeriod::Time;

  explicit Patience(Groups& groups) : groups_(groups) {}

  /// `submissions`: of this rank, so far. Returns whether a period has ended.
  bool look(std::size_t submissions, Time now);
  /// Whether a period runs, or begins with the next look: look() must be called to see its end.
  bool counting() const;

 private:
  bool stands_still() const;

  Groups& groups_;
  // A program waits while it leaves buckets incomplete: another rank may have submitted in another order.
  GracePeriod standstill_{std::chrono::milliseconds(100)};
};

}  // namespace kolo
