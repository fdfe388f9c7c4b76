#include "runtime/coordinator/callbacks.h"

#include "ops/host/process.h"
#include "runtime/control/started_thread.h"

namespace kolo {

Callbacks::~Callbacks() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  if (thread_.get_id() == std::this_thread::get_id()) thread_.detach();  // a task has called exit(): it does not return
}

void Callbacks::start() {
  const std::lock_guard lock(mutex_);
  if (!thread_.joinable()) thread_ = started_thread("runs the functions that follow operations", [this] { run(); });
}

void Callbacks::post(Tasks& tasks) noexcept {
  const std::lock_guard lock(mutex_);
  waiting_.splice(waiting_.end(), tasks);
  changed_.notify_all();
}

void Callbacks::finish() {
  std::unique_lock lock(mutex_);
  if (thread_.get_id() == std::this_thread::get_id()) return;
  changed_.wait(lock, [this] { return waiting_.empty() && !running_; });
}

void Callbacks::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stop_ || !waiting_.empty(); });
    if (waiting_.empty()) return;
    Tasks next;
    next.splice(next.end(), waiting_, waiting_.begin());
    running_ = true;
    lock.unlock();
    next.front()();
    if (forked()) return;  // in the task
    next.clear();          // what it holds dies here
    lock.lock();
    running_ = false;
    changed_.notify_all();
  }
}

}  // namespace kolo
