#include "ops/host/doorbell.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <ctime>

namespace kolo {

void Doorbell::ring() {
  if (armed_.load(std::memory_order_seq_cst) == 0) return;
  sequence_.fetch_add(1, std::memory_order_seq_cst);
  // Not FUTEX_PRIVATE_FLAG: sleeper and ringer may be different processes.
  syscall(SYS_futex, &sequence_, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

bool Doorbell::sleep(std::uint32_t ticket, std::chrono::nanoseconds timeout) {
  if (timeout <= std::chrono::nanoseconds::zero()) return false;
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(timeout);
  timespec relative{static_cast<time_t>(seconds.count()), static_cast<long>((timeout - seconds).count())};
  const long rc = syscall(SYS_futex, &sequence_, FUTEX_WAIT, ticket, &relative, nullptr, 0);
  return rc == 0 || errno != ETIMEDOUT || rung_since(ticket);
}

}  // namespace kolo
