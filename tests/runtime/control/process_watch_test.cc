// Processes of this host that end while others have something to do with them.

#include "runtime/control/process_watch.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>

namespace kolo {
namespace {

using namespace std::chrono_literals;

/// A process that waits until it is killed.
pid_t sleeper() {
  const pid_t pid = ::fork();
  if (pid == 0) {
    for (;;) ::pause();
  }
  return pid;
}

void end(pid_t pid) {
  ::kill(pid, SIGKILL);
  ::waitpid(pid, nullptr, 0);
}

TEST(ProcessWatchTest, WhoEndsIsNoticedOnce) {
  Doorbell doorbell{};
  const pid_t first = sleeper(), second = sleeper();
  {
    ProcessWatch watch({{3, first}, {7, second}}, doorbell);
    EXPECT_FALSE(watch.any());
    for (const auto& [rank, pid] : {std::pair{7, second}, std::pair{3, first}}) {
      const auto ticket = doorbell.arm();
      end(pid);
      while (!watch.any()) ASSERT_TRUE(doorbell.sleep(ticket, 10s)) << "the end of rank " << rank;
      EXPECT_EQ(watch.take(), rank);
      EXPECT_EQ(watch.take(), std::nullopt);
    }
  }
}

TEST(ProcessWatchTest, WhoHasEndedBeforeIsNoticed) {
  Doorbell doorbell{};
  const pid_t pid = sleeper();
  end(pid);
  ProcessWatch watch({{1, pid}}, doorbell);
  EXPECT_EQ(watch.take(), 1);
}

TEST(ProcessWatchTest, EndsWhileTheOthersLive) {
  Doorbell doorbell{};
  const pid_t pid = sleeper();
  { const ProcessWatch watch({{1, pid}}, doorbell); }
  { const ProcessWatch nobody({}, doorbell); }
  end(pid);
}

}  // namespace
}  // namespace kolo
