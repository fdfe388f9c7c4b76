#include "ops/host/region.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <string>
#include <thread>

#include <kolo/error.h>
#include <kolo/memory.h>

#include "ops/host/doorbell.h"

namespace kolo {
namespace {

using namespace std::chrono_literals;

struct Page {
  Doorbell doorbell;
  std::atomic<std::uint32_t> news;
  std::atomic<std::uint32_t> answer;
};

// Runs `body` in a process of its own, which dies with this one; join() says whether it returned true.
class Child {
 public:
  explicit Child(const std::function<bool()>& body) : pid_(fork()) {
    if (pid_ != 0) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    _exit(body() ? 0 : 1);
  }
  bool join() const {
    int status = 0;
    return waitpid(pid_, &status, 0) == pid_ && WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }

 private:
  pid_t pid_;
};

// Listens as doorbell.h says, until `news` reaches `wanted`; false if a ring was lost.
bool wait_for_news(Page& page, std::uint32_t wanted) {
  while (page.news.load() < wanted) {
    const std::uint32_t ticket = page.doorbell.arm();
    if (page.news.load() >= wanted) break;
    const auto before = std::chrono::steady_clock::now();
    page.doorbell.sleep(ticket, 20s);
    if (std::chrono::steady_clock::now() - before > 10s) return false;
  }
  page.doorbell.disarm();
  return true;
}

void publish(Page& page, std::uint32_t news) {
  page.news.store(news);
  page.doorbell.ring();
}

// Rings at random distances; the listener answers each, so that the next ring meets it at another place.
void ring_many_times(Page& page) {
  for (std::uint32_t i = 1; i <= 2000; ++i) {
    if (i % 16 == 0) std::this_thread::sleep_for(std::chrono::microseconds(i % 100));
    publish(page, i);
    while (page.answer.load() < i) std::this_thread::yield();
  }
}
bool listen_many_times(Page& page) {
  for (std::uint32_t i = 1; i <= 2000; ++i) {
    if (!wait_for_news(page, i)) return false;
    page.answer.store(i);
  }
  return true;
}

TEST(Region, HeapStartsAsAlignedZeros) {
  const auto region = heap_region(100'000);
  EXPECT_EQ(region->size(), 100'000u);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(region->data()) % 64, 0u);
  for (std::size_t i = 0; i < region->size(); ++i) ASSERT_EQ(region->data()[i], std::byte{0});
}

TEST(Region, PagesThatNobodyTouchesCostNothing) {
  const auto region = heap_region(std::size_t{1} << 32);
  *region->at<std::uint64_t>((std::size_t{1} << 32) - 8) = 1;
}

TEST(Region, MoreThanThereIsIsRefusedAtOnce) {
  for (const std::size_t bytes :
       {std::size_t{1} << 45, std::size_t{1} << 62, std::numeric_limits<std::size_t>::max()}) {
    const auto start = std::chrono::steady_clock::now();
    try {
      (void)SharedRegion::create(bytes);
      FAIL() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::backend);
      EXPECT_EQ(std::string(error.what()).find("cannot reserve " + std::to_string(bytes) + " bytes of shared memory ("),
                0u)
          << error.what();
    }
    EXPECT_LT(std::chrono::steady_clock::now() - start, 5s);
  }
}

/// A root folder with files in the places where the kernel has its own.
class MachineFiles {
 public:
  MachineFiles() : root_(std::filesystem::temp_directory_path() / ("kolo_region_test." + std::to_string(getpid()))) {}
  ~MachineFiles() { std::filesystem::remove_all(root_); }
  void write(const std::string& path, const std::string& text) const {
    std::filesystem::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  std::size_t available() const { return available_memory(root_.string()); }

 private:
  std::filesystem::path root_;
};

TEST(AvailableMemory, IsTheLeastOfTheMachineAndTheGroupsAroundTheProcess) {
  const MachineFiles machine;
  EXPECT_EQ(machine.available(), std::numeric_limits<std::size_t>::max());
  machine.write("proc/meminfo", "MemTotal:       8000 kB\nMemAvailable:   4000 kB\n");
  EXPECT_EQ(machine.available(), 4000u * 1024);
  machine.write("proc/self/cgroup", "0::/jobs/7\n");
  machine.write("sys/fs/cgroup/jobs/7/memory.max", "max\n");
  machine.write("sys/fs/cgroup/jobs/7/memory.current", "5000\n");
  EXPECT_EQ(machine.available(), 4000u * 1024);
  machine.write("sys/fs/cgroup/jobs/memory.max", "9000\n");
  machine.write("sys/fs/cgroup/jobs/memory.current", "8000\n");
  machine.write("sys/fs/cgroup/jobs/memory.stat", "anon 6000\nactive_file 1000\ninactive_file 500\n");
  EXPECT_EQ(machine.available(), 2500u);
  machine.write("proc/self/cgroup", "9:memory:/jobs\n0::/\n");
  machine.write("sys/fs/cgroup/memory/jobs/memory.limit_in_bytes", "700\n");
  machine.write("sys/fs/cgroup/memory/jobs/memory.usage_in_bytes", "900\n");
  EXPECT_EQ(machine.available(), 0u);
}

TEST(Region, ProcessesSeeEachOthersWrites) {
  const auto mine = SharedRegion::create(1 << 16);
  for (std::size_t i = 0; i < mine->size(); ++i) ASSERT_EQ(mine->data()[i], std::byte{0});
  mine->at<std::atomic<std::uint32_t>>(4096)->store(7);
  const pid_t parent = getpid();
  const Child child([&] {
    const auto theirs = SharedRegion::open(parent, mine->descriptor(), mine->file(), 1 << 16);
    if (theirs->data() == mine->data()) return false;
    return theirs->at<std::atomic<std::uint32_t>>(4096)->exchange(8) == 7;
  });
  ASSERT_TRUE(child.join());
  EXPECT_EQ(mine->at<std::atomic<std::uint32_t>>(4096)->load(), 8u);
}

TEST(Region, TheMappingOutlivesItsDescriptor) {
  const auto mine = SharedRegion::create(4096);
  const auto other = SharedRegion::open(getpid(), mine->descriptor(), mine->file(), 4096);
  mine->close_descriptor();
  other->close_descriptor();
  *mine->at<int>(0) = 5;
  EXPECT_EQ(*other->at<int>(0), 5);
}

TEST(Region, AnotherFileIsNotTouched) {
  const auto mine = SharedRegion::create(4096), other = SharedRegion::create(4096), small = SharedRegion::create(100);
  const FileDescriptor device(::open("/dev/zero", O_RDWR | O_CLOEXEC));
  const auto refused = [](int descriptor, std::uint32_t file) {
    try {
      (void)SharedRegion::open(getpid(), descriptor, file, 4096);
      return false;
    } catch (const Error& error) {
      return std::string(error.what()).find("is not the memory of the rank") != std::string::npos;
    }
  };
  EXPECT_TRUE(refused(other->descriptor(), mine->file()));
  EXPECT_TRUE(refused(device.get(), mine->file()));
  EXPECT_TRUE(refused(small->descriptor(), small->file())) << "it is too short";
}

TEST(Region, OpeningWhatIsNotThereIsAnError) {
  try {
    (void)SharedRegion::open(getpid(), 9999, 0, 4096);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::backend);
    EXPECT_NE(std::string(error.what()).find("/fd/9999"), std::string::npos) << error.what();
  }
}

TEST(Doorbell, WakesAThread) {
  const auto region = heap_region(sizeof(Page));
  Page& page = *region->at<Page>(0);
  std::jthread ringer([&] { ring_many_times(page); });
  EXPECT_TRUE(listen_many_times(page));
}

TEST(Doorbell, WakesAProcess) {
  const auto region = SharedRegion::create(sizeof(Page));
  Page& page = *region->at<Page>(0);
  const Child ringer([&] {
    ring_many_times(page);
    return true;
  });
  EXPECT_TRUE(listen_many_times(page));
  EXPECT_TRUE(ringer.join());
}

TEST(Doorbell, SleepEndsAtItsTimeout) {
  const auto region = heap_region(sizeof(Page));
  Doorbell& doorbell = *region->at<Doorbell>(0);
  const std::uint32_t ticket = doorbell.arm();
  const auto before = std::chrono::steady_clock::now();
  doorbell.sleep(ticket, 5ms);
  EXPECT_GE(std::chrono::steady_clock::now() - before, 4ms);
  doorbell.sleep(ticket, 0ms);
  doorbell.sleep(ticket, -1ms);
}

TEST(Doorbell, ARingBeforeSleepIsNotLost) {
  const auto region = heap_region(sizeof(Page));
  Doorbell& doorbell = *region->at<Doorbell>(0);
  const std::uint32_t ticket = doorbell.arm();
  doorbell.ring();
  const auto before = std::chrono::steady_clock::now();
  doorbell.sleep(ticket, 20s);
  EXPECT_LT(std::chrono::steady_clock::now() - before, 10s);
}

}  // namespace
}  // namespace kolo
