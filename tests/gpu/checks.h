#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>

// What gpu_smoke prints: a numbered line for each check, as soon as it is known.

namespace kolo::smoke {

/// A result is not as it should be.
class Wrong : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};
/// What a check needs is not here.
class Skipped : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

inline void require(bool holds, const std::string& what) {
  if (!holds) throw Wrong(what);
}

/// What a check finds out besides.
class Line {
 public:
  /// Runs `body`, which waits for all that it begins, twice: the second run takes what it takes without lazy loading.
  /// Returns the seconds of that, which are the line's; of several calls those of the last.
  double time(const std::function<void()>& body) {
    body();
    return time_once(body);
  }
  /// For what has run before.
  double time_once(const std::function<void()>& body) {
    const auto begin = std::chrono::steady_clock::now();
    body();
    return seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }
  /// Printed behind the time.
  void note(const std::string& text) { notes_ += "; " + text; }

  double seconds() const { return seconds_; }
  const std::string& notes() const { return notes_; }

 private:
  double seconds_ = 0;
  std::string notes_;
};

/// Which checks are wanted, and how many there were before.
struct Selection {
  std::set<int> only{};  ///< their numbers; none: all
  int after = 0;         ///< those before, and this one, are done
  int ok = 0, failed = 0, skipped = 0;

  bool contains(int number) const { return number > after && (only.empty() || only.contains(number)); }
  /// Of the program's arguments: NUMBER…, behind what Checks adds to go on in a fresh process.
  static Selection of(int count, char** arguments);
};

/// Runs checks one after the other and prints a line for each; one that takes too long ends the process with code 3.
class Checks {
 public:
  /// `works`: whether the device still does, after a check that has failed. Else every later call of the process would
  /// fail, too: so the program begins anew, behind that check.
  Checks(Selection selection, std::chrono::seconds limit, std::function<bool()> works);
  ~Checks();
  Checks(const Checks&) = delete;
  Checks& operator=(const Checks&) = delete;

  /// A line without a number.
  void tell(const std::string& text);
  /// What comes before the checks; it may take `times` limits.
  void prepare(const std::string& what, const std::function<void()>& body, int times);
  /// `times`: the limits that it may take, if it is one that loads libraries.
  void run(const std::string& what, const std::function<void(Line&)>& check, int times = 1);
  /// Prints how many there were; the exit code.
  int finish();

 private:
  void print(const std::string& state, const std::string& text) const;
  void begin(const std::string& what, int times);
  void begin_anew() const;
  void watch();

  Selection selection_;
  const std::chrono::seconds limit_;
  const std::function<bool()> works_;
  int number_ = 0;

  std::mutex mutex_;
  std::condition_variable news_;
  bool over_ = false;
  std::string running_;  // empty: nothing is
  std::chrono::steady_clock::time_point deadline_;
  std::jthread watchdog_;
};

}  // namespace kolo::smoke
