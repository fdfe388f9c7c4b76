#include "runtime/world/at_exit.h"

#include <exception>
#include <mutex>

namespace kolo {
namespace {

// Neither has a destructor that does anything: they are used while static objects die.
constinit std::mutex mutex;
constinit LeaveAtExit* newest = nullptr;

}  // namespace

LeaveAtExit::LeaveAtExit(std::function<void(bool failed)> leave) : leave_(std::move(leave)) {
  const std::lock_guard lock(mutex);
  next_ = newest;
  newest = this;
}

LeaveAtExit::~LeaveAtExit() {
  const std::lock_guard lock(mutex);
  LeaveAtExit** link = &newest;
  while (*link != this) link = &(*link)->next_;
  *link = next_;
}

void leave_sessions(bool failed) noexcept {
  const std::lock_guard lock(mutex);
  for (LeaveAtExit* session = newest; session; session = session->next_) {
    try {
      session->leave_(failed);
    } catch (const std::exception&) {  // the program ends anyhow
    }
  }
}

}  // namespace kolo
