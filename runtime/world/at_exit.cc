#include "runtime/world/at_exit.h"

#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <exception>
#include <mutex>

namespace kolo {
namespace {

// All have trivial destructors: they are used while static objects are destroyed.
constinit std::mutex mutex;
constinit LeaveAtExit* newest = nullptr;
constinit std::atomic<bool> lost = false;

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

void LeaveAtExit::lost_a_rank() noexcept {
  lost = true;
}

bool have_lost_ranks() noexcept {
  return lost;
}

void leave_sessions_at_exit() {
  static std::once_flag registered;
  std::call_once(registered, [] {
    on_exit(
        [](int status, void* process) {
          if (process == reinterpret_cast<void*>(getpid())) leave_sessions(status != 0);  // not a child made by fork()
        },
        reinterpret_cast<void*>(getpid()));
  });
}

void leave_sessions(bool failed) noexcept {
  const std::lock_guard lock(mutex);
  for (LeaveAtExit* session = newest; session; session = session->next_) {
    try {
      session->leave_(failed);
    } catch (const std::exception&) {  // the program ends in any case
    }
  }
}

}  // namespace kolo
