#include "runtime/control/process_watch.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "runtime/control/started_thread.h"

namespace kolo {
namespace {

constexpr std::uint64_t stop_tag = ~std::uint64_t{0};

bool watch(int poll, int descriptor, std::uint64_t tag) {
  epoll_event event{.events = EPOLLIN, .data = {.u64 = tag}};
  return ::epoll_ctl(poll, EPOLL_CTL_ADD, descriptor, &event) == 0;
}

}  // namespace

ProcessWatch::ProcessWatch(const std::map<int, int>& pids, Doorbell& doorbell)
    : doorbell_(doorbell), poll_(::epoll_create1(EPOLL_CLOEXEC)), stop_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!poll_ || !stop_ || !watch(poll_.get(), stop_.get(), stop_tag)) return;
  for (const auto& [rank, pid] : pids) {
    FileDescriptor process(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
    if (!process && errno == ESRCH) ended(rank);
    if (process && watch(poll_.get(), process.get(), static_cast<std::uint64_t>(rank)))
      processes_.emplace(rank, std::move(process));
  }
  try {
    if (!processes_.empty()) thread_ = started_thread("notices the end of other processes", [this] { wait(); });
  } catch (const Error&) {  // without it what waits for a process that has ended is the watchdog's business
  }
}

ProcessWatch::~ProcessWatch() {
  const std::uint64_t one = 1;
  if (thread_.joinable()) (void)!::write(stop_.get(), &one, sizeof one);
}

void ProcessWatch::wait() {
  for (;;) {
    epoll_event event;
    const int count = ::epoll_wait(poll_.get(), &event, 1, -1);
    if (count < 0 && errno != EINTR) return;
    if (count <= 0) continue;
    if (event.data.u64 == stop_tag) return;
    const int rank = static_cast<int>(event.data.u64);
    processes_.at(rank).reset();  // and is watched no more
    ended(rank);
  }
}

void ProcessWatch::ended(int rank) {
  {
    const std::lock_guard lock(mutex_);
    ended_.push_back(rank);
    any_.store(true, std::memory_order_release);
  }
  doorbell_.ring();
}

std::optional<int> ProcessWatch::take() {
  if (!any()) return std::nullopt;
  const std::lock_guard lock(mutex_);
  const int rank = ended_.back();
  ended_.pop_back();
  any_.store(!ended_.empty(), std::memory_order_release);
  return rank;
}

std::uint64_t pid_namespace() {
  struct stat status {};
  return ::stat("/proc/self/ns/pid", &status) == 0 ? status.st_ino : 0;
}

}  // namespace kolo
