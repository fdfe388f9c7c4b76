#include "runtime/coordinator/callbacks.h"

#include <exception>
#include <string>
#include <utility>

#include "runtime/control/started_thread.h"

namespace kolo {

Callbacks::~Callbacks() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
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
    try {
      next.front()();
    } catch (const std::exception& error) {
      report(config_, std::string("a function given to Handle::on_done() has thrown: ") + error.what());
    } catch (...) {
      report(config_, "a function given to Handle::on_done() has thrown an exception of an unknown type");
    }
    next.clear();  // what it holds dies here
    lock.lock();
    running_ = false;
    changed_.notify_all();
  }
}

}  // namespace kolo
