// Showing memory, and attaching it, by a fake libxpmem.so.0: the real module has not been run.

#include <gtest/gtest.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>

#include <kolo/error.h>

#include "ops/host/file_descriptor.h"
#include "ops/host/mappings.h"
#include "ops/host/xpmem.h"
#include "tests/support/fake_xpmem.h"

namespace kolo {
namespace {

constexpr std::size_t three_pages = 3 * 4096;

class FakeXpmem : public ::testing::Test {
 protected:
  FakeXpmem() {
    EXPECT_NE(mkdtemp(folder_), nullptr);
    setenv("FAKE_XPMEM_FOLDER", folder_, 1);
    xpmem_ = Xpmem::open("/dev/null");
  }
  ~FakeXpmem() override {
    fake_xpmem_fail(nullptr, 0);
    std::filesystem::remove_all(folder_);
  }
  void SetUp() override { ASSERT_TRUE(xpmem_); }

  /// Memory of a kind; unmapped at the end.
  std::shared_ptr<std::byte> pages(int protection, int flags, int file = -1) const {
    void* const data = mmap(nullptr, three_pages, protection, flags, file, 0);
    EXPECT_NE(data, MAP_FAILED);
    return {static_cast<std::byte*>(data), [](std::byte* begin) { munmap(begin, three_pages); }};
  }
  std::shared_ptr<std::byte> ordinary() const { return pages(PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS); }
  std::string refusal(const std::function<void()>& call) const {
    try {
      call();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::backend);
      return error.what();
    }
    return "";
  }

  char folder_[32] = "/tmp/fake_xpmem_XXXXXX";
  std::shared_ptr<const Xpmem> xpmem_;
};

TEST_F(FakeXpmem, IsNotThereWithoutItsDevice) {
  EXPECT_FALSE(Xpmem::open("/dev/no xpmem here"));
}

/// The module ends what a process has when that closes the device, which another library may have opened, too.
TEST_F(FakeXpmem, NobodyOpensTheDeviceButItsLibrary) {
  const std::string device = std::string(folder_) + "/device";
  std::ofstream(device).close();
  const FileDescriptor events(inotify_init1(IN_NONBLOCK | IN_CLOEXEC));
  ASSERT_GE(inotify_add_watch(events.get(), device.c_str(), IN_OPEN), 0);
  EXPECT_TRUE(Xpmem::open(device));
  std::array<char, 1024> event;
  EXPECT_EQ(read(events.get(), event.data(), event.size()), -1);
  std::ifstream(device).close();
  EXPECT_GT(read(events.get(), event.data(), event.size()), 0) << "such a test can fail";
}

TEST_F(FakeXpmem, ShowsMemoryThatStaysWhereItIs) {
  const auto memory = ordinary();
  std::memset(memory.get(), 7, three_pages);
  {
    const auto shown = xpmem_->show(memory.get(), three_pages);
    EXPECT_EQ(shown.data.get(), memory.get());
    EXPECT_NE(shown.id, 0);
    const auto attached = xpmem_->attach(shown.id, three_pages);
    EXPECT_NE(attached.get(), memory.get());
    EXPECT_EQ(std::memcmp(attached.get(), memory.get(), three_pages), 0);
    memory.get()[4096] = std::byte{8};
    attached.get()[8192] = std::byte{9};
    EXPECT_EQ(attached.get()[4096], std::byte{8});
    EXPECT_EQ(memory.get()[8192], std::byte{9});
    EXPECT_FALSE(fake_xpmem_counts().balanced());
  }
  EXPECT_TRUE(fake_xpmem_counts().balanced());
  EXPECT_EQ(memory.get()[8192], std::byte{9});
}

TEST_F(FakeXpmem, ManyPagesAreLookedAt) {
  const auto many = static_cast<std::byte*>(std::aligned_alloc(4096, 3000 * 4096));
  {
    const auto shown = xpmem_->show(many, 3000 * 4096);
    EXPECT_TRUE(xpmem_->attach(shown.id, 3000 * 4096));
  }
  std::free(many);
}

TEST_F(FakeXpmem, EachCallThatFailsIsAnError) {
  const auto memory = ordinary();
  fake_xpmem_fail("make", 0);
  EXPECT_EQ(refusal([&] { xpmem_->show(memory.get(), three_pages); }),
            "cannot show 12288 bytes to peers by XPMEM (Device or resource busy)");
  fake_xpmem_fail(nullptr, 0);
  const auto shown = xpmem_->show(memory.get(), three_pages);
  const std::string why = "cannot reach 12288 bytes of another rank's tensors by XPMEM";
  for (const char* call : {"get", "attach", "pages"}) {
    fake_xpmem_fail(call, 0);
    EXPECT_EQ(refusal([&] { xpmem_->attach(shown.id, three_pages); }).find(why), 0U) << call;
  }
  fake_xpmem_fail(nullptr, 0);
  const FakeXpmemCounts counts = fake_xpmem_counts();
  EXPECT_EQ(counts.got, counts.released);
  EXPECT_EQ(counts.attached, counts.detached);
  EXPECT_TRUE(xpmem_->attach(shown.id, three_pages));
}

TEST_F(FakeXpmem, PagesThatAreGoneAreAnErrorAndNoSignal) {
  const auto memory = ordinary();
  auto shown = xpmem_->show(memory.get(), three_pages);
  const Xpmem::Id id = shown.id;
  shown = {};
  EXPECT_NE(refusal([&] { xpmem_->attach(id, three_pages); }), "");
  munmap(memory.get() + 4096, 4096);
  EXPECT_NE(refusal([&] { xpmem_->show(memory.get(), three_pages); }).find("there is no memory for 12288 bytes"),
            std::string::npos);
}

TEST_F(FakeXpmem, AProcessThatDiedLeavesNothingAttached) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const FileDescriptor out(ends[0]), in(ends[1]);
  const pid_t child = fork();
  if (child == 0) {
    const auto memory = ordinary();
    memory.get()[5] = std::byte{55};
    const auto shown = xpmem_->show(memory.get(), three_pages);
    (void)!write(in.get(), &shown.id, sizeof(shown.id));
    pause();
    _exit(0);
  }
  Xpmem::Id id = 0;
  ASSERT_EQ(read(out.get(), &id, sizeof(id)), static_cast<ssize_t>(sizeof(id)));
  {
    const auto attached = xpmem_->attach(id, three_pages);
    EXPECT_EQ(attached.get()[5], std::byte{55});
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
  }
  EXPECT_TRUE(fake_xpmem_counts().balanced());
  EXPECT_NE(refusal([&] { xpmem_->attach(id, three_pages); }), "");
}

TEST_F(FakeXpmem, MemoryThatCannotBeReplacedCanBeKept) {
  std::FILE* const file = std::tmpfile();
  ASSERT_EQ(ftruncate(fileno(file), static_cast<off_t>(three_pages)), 0);
  const auto shared = pages(PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS);
  const auto of_file = pages(PROT_READ | PROT_WRITE, MAP_SHARED, fileno(file));
  const auto locked = ordinary();
  (void)mlock(locked.get(), three_pages);  // sanitizers do as if
  std::fclose(file);
  for (const auto& memory : {shared, of_file})
    EXPECT_THROW(check_adoptable(memory.get(), three_pages, Adopted::replaced), Error);
  for (const auto& memory : {shared, of_file, locked}) {
    EXPECT_NO_THROW(check_adoptable(memory.get(), three_pages, Adopted::kept));
    std::memset(memory.get(), 3, three_pages);
    const auto shown = xpmem_->show(memory.get(), three_pages);
    EXPECT_EQ(*xpmem_->attach(shown.id, three_pages), std::byte{3});
  }
  const auto read_only = pages(PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS);
  EXPECT_THROW(check_adoptable(read_only.get(), three_pages, Adopted::kept), Error);
}

}  // namespace
}  // namespace kolo
