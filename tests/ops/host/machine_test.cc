#include "ops/host/machine.h"

#include <gtest/gtest.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <string>

#include "tests/support/environment.h"

namespace kolo {
namespace {

/// A file system that shows a machine.
class Machine : public ::testing::Test {
 protected:
  void write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = root_ + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text << '\n';
  }
  /// Of two sockets with four cores each, whose caches serve two.
  void write_two_sockets() {
    for (int core = 0; core < 8; ++core) {
      const int first = core / 2 * 2;
      write("/sys/devices/system/cpu/cpu" + std::to_string(core) + "/cache/index3/shared_cpu_list",
            std::to_string(first) + "-" + std::to_string(first + 1));
    }
    write("/sys/devices/system/node/online", "0-1");
    write("/sys/devices/system/node/node0/cpulist", "0-3");
    write("/sys/devices/system/node/node1/cpulist", "4,5-7");
  }
  Domains domains(std::vector<int> cores) const { return domains_of_cores(cores, root_); }

 private:
  testing::TempFolder folder_;
  std::string root_ = folder_.path().string();
};

TEST_F(Machine, DomainsOfCores) {
  write_two_sockets();
  EXPECT_EQ(domains({3}).cache, 2);
  EXPECT_EQ(domains({3}).memory, 0);
  EXPECT_EQ(domains({4, 5}).cache, 4);
  EXPECT_EQ(domains({5, 4}).memory, 1);
  EXPECT_EQ(domains({5, 6}).cache, -1) << "two caches";
  EXPECT_EQ(domains({5, 6}).memory, 1);
  EXPECT_EQ(domains({3, 4}).cache, -1);
  EXPECT_EQ(domains({3, 4}).memory, -1) << "two memories";
  EXPECT_EQ(domains({}).memory, -1);
}

TEST_F(Machine, NothingIsKnownWhereTheSystemShowsNothing) {
  EXPECT_EQ(domains({0}).cache, -1);
  EXPECT_EQ(domains({0}).memory, -1);
  write("/sys/devices/system/node/online", "garbage");
  write("/sys/devices/system/cpu/cpu0/cache/index3/shared_cpu_list", "");
  EXPECT_EQ(domains({0}).cache, -1);
  EXPECT_EQ(domains({0}).memory, -1);
}

TEST_F(Machine, OwnCoresAreThoseOfTheThread) {
  EXPECT_FALSE(own_cores().empty());
}

}  // namespace
}  // namespace kolo
