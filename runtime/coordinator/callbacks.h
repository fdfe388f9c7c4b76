#pragma once

#include <condition_variable>
#include <functional>
#include <list>
#include <mutex>
#include <thread>

namespace kolo {

/// Runs the program's functions that follow operations, one after the other, in a thread of its own that has nothing
/// else to do: never under the coordinator's role. Thread-safe.
class Callbacks {
 public:
  using Tasks = std::list<std::function<void()>>;

  ~Callbacks();

  /// Starts the thread, if there is none. Throws Error{backend}.
  void start();
  /// start() was called. Tasks must not throw; each dies once it has run.
  void post(Tasks& tasks) noexcept;
  /// Returns when all that was posted has run; at once in a task.
  void finish();

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  Tasks waiting_;
  bool running_ = false, stop_ = false;
  std::jthread thread_;  // last: it uses everything above
};

}  // namespace kolo
