#include "ops/host/process.h"

#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <atomic>

#include <kolo/error.h>

namespace kolo {
namespace {

constinit std::atomic<bool> is_child{false};

}  // namespace

bool more_ranks_than_cores(int ranks) {
  const long online = sysconf(_SC_NPROCESSORS_ONLN);
  if (online > 0 && ranks > online) return true;
  cpu_set_t mine;
  if (sched_getaffinity(0, sizeof(mine), &mine) != 0) return false;
  const int allowed = CPU_COUNT(&mine);
  return allowed > 1 && ranks > allowed;
}

bool has_one_core() {
  cpu_set_t mine;
  return sched_getaffinity(0, sizeof(mine), &mine) == 0 && CPU_COUNT(&mine) == 1;
}

void notice_forks() {
  static const int registered = pthread_atfork(nullptr, nullptr, [] { is_child = true; });
  (void)registered;
}

bool forked() noexcept {
  return is_child.load(std::memory_order_relaxed);
}

void refuse_forked() {
  if (!forked()) return;
  throw Error(ErrorCode::closed,
              "this process was made by fork(), and its parent's session is none of its own; use the session in the "
              "parent, or start the other program with exec() or from the launcher");
}

}  // namespace kolo
