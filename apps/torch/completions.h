#pragma once

#include <chrono>
#include <functional>
#include <memory>

namespace kolo_torch {

/// Threads for what follows operations: completing futures, and with that the program's functions, which may take
/// Python's lock and wait for other operations. So a task never waits for one that is blocked: where all threads are
/// busy another one is started; where the system has no more, the task runs in the thread that posts it. Threads end
/// after a while without work. Thread-safe.
class Completions {
 public:
  Completions();
  /// Waits for nothing: tasks that run, or are still to run, do so.
  ~Completions();
  Completions(const Completions&) = delete;
  Completions& operator=(const Completions&) = delete;

  /// Tasks must not throw; each dies once it has run, in its thread. In a child of fork() none runs.
  void post(std::function<void()> task);

  /// Whether all tasks had run at some moment before `deadline`.
  bool finish(std::chrono::steady_clock::time_point deadline);

 private:
  struct State;
  static void run(const std::shared_ptr<State>& state);

  const std::shared_ptr<State> state_;
};

}  // namespace kolo_torch
