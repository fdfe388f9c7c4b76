// What kolo-bench --tune finds out, and notes in a file that sessions read.

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include "tests/bench/bench_testing.h"

namespace kolo::testing {
namespace {

class BenchTune : public ::testing::Test {
 protected:
  std::string file() const { return (folder_ / "tuning").string(); }
  Ended tune(const std::string& environment) const { return bench(folder_, 2, "--tune -b 64K -e 128K", environment); }
  /// Of a session that reads the file: what it says.
  std::string complaint(const std::string& content) const {
    write_file(folder_ / "tuning", content);
    const auto ended = bench(folder_, 2, "all_reduce -b 64K -e 64K -n 3 --format json", "KOLO_TUNING=" + file());
    EXPECT_EQ(ended.code, 0) << ended.err;
    EXPECT_EQ(ended.json().at("results").at(0).at("wrong"), 0);
    return ended.err;
  }
  /// Whether the file is whole: its last line counts its rows.
  static bool is_sound(const std::string& text) {
    const auto lines = static_cast<std::size_t>(std::ranges::count(text, '\n'));
    return text.starts_with("kolo tuning 1\n") && lines > 4 && text.ends_with(fmt::format("\n{} rows\n", lines - 4));
  }

  TempFolder folder_;
};

TEST_F(BenchTune, NotesWhatItFinds) {
  const auto ended = tune("KOLO_TUNING=" + file());
  ASSERT_EQ(ended.code, 0) << ended.err;
  EXPECT_NE(ended.out.find("# written to " + file()), std::string::npos);
  const auto rows = ended.figures();
  EXPECT_EQ(rows.size() % 2, 0u) << "two sizes of each";
  EXPECT_GT(rows.size(), 60u);
  for (const auto& row : rows) {
    const auto words = words_of(row);
    ASSERT_EQ(words.size(), 7u) << row;
    EXPECT_TRUE(words[5].starts_with("ring-") || words[5].starts_with("read-") || words[5] == "mapped") << row;
  }
  const std::string text = read_file(file());
  EXPECT_TRUE(is_sound(text)) << text;
  EXPECT_EQ(complaint(text).find("tuning"), std::string::npos);
}

TEST_F(BenchTune, AFileThatIsNoneIsRefusedAndDoesNoHarm) {
  ASSERT_EQ(tune("KOLO_TUNING=" + file()).code, 0);
  const std::string text = read_file(file());
  const std::string refused = "kolo: the tuning file " + file() + " is not used: ";
  EXPECT_NE(complaint("nonsense").find(refused + "it is no tuning file of this format"), std::string::npos);
  EXPECT_NE(complaint(text.substr(0, text.size() / 2)).find(refused + "its "), std::string::npos);
  std::string foreign = text;
  foreign.replace(foreign.find("machine ") + 8, 3, "Zzz");
  EXPECT_NE(complaint(foreign).find(refused + "it is of machine Zzz"), std::string::npos);
  const auto missing = bench(folder_, 2, "all_reduce -b 64K -e 64K -n 3", "KOLO_TUNING=/nowhere/tuning");
  EXPECT_EQ(missing.code, 0);
  EXPECT_NE(missing.err.find("the tuning file /nowhere/tuning is not used: it cannot be read"), std::string::npos);
}

TEST_F(BenchTune, WhatIsNoFileIsNotOpened) {
  const std::string pipe = file(), run = "all_reduce -b 64K -e 64K -n 3", refused = " is not used: it is ";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const auto ended = bench(folder_, 2, run, "KOLO_TUNING=" + pipe);
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_NE(ended.err.find(refused + "no file"), std::string::npos) << ended.err;
  write_file(folder_ / "large", std::string(2 << 20, 'x'));
  const auto large = bench(folder_, 2, run, "KOLO_TUNING=" + (folder_ / "large").string());
  EXPECT_EQ(large.code, 0) << large.err;
  EXPECT_NE(large.err.find(refused + "too large"), std::string::npos) << large.err;
}

TEST_F(BenchTune, RanksThatShareSeveralCachesTune) {
  const std::string environment = "KOLO_FAKE_DOMAINS=2,1 KOLO_TUNING=" + file();
  const auto ended = bench(folder_, 3, "--tune -b 512K -e 512K", environment);
  ASSERT_EQ(ended.code, 0) << ended.err;
  const std::string text = read_file(file());
  EXPECT_NE(text.find("\n3 all_gather "), std::string::npos) << text;
  EXPECT_NE(text.find("\n2 reduce_scatter "), std::string::npos) << "of those that share one" << text;
  const auto read = bench(folder_, 3, "all_reduce --direct -b 512K -e 512K -n 5 --format json", environment);
  ASSERT_EQ(read.code, 0) << read.err;
  EXPECT_EQ(read.err.find("tuning"), std::string::npos) << read.err;
  const auto result = read.json().at("results").at(0);
  EXPECT_EQ(result.at("wrong"), 0);
  EXPECT_FALSE(result.at("method").get<std::string>().starts_with("trial"));
}

TEST_F(BenchTune, AHomeThatCannotBeWrittenIsNoError) {
  const auto ended = tune("HOME=/proc XDG_CACHE_HOME=");
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_NE(ended.err.find("/proc/.cache/kolo/tuning"), std::string::npos) << ended.err;
  EXPECT_EQ(bench(folder_, 2, "all_reduce -b 64K -e 64K -n 3", "HOME=/proc XDG_CACHE_HOME=").code, 0);
  EXPECT_EQ(tune("KOLO_TUNING=/proc/tuning").code, 1) << "a file that is named must be there at the end";
}

TEST_F(BenchTune, TwoJobsAtOnceLeaveASoundFile) {
  const TempFolder other;
  Ended one, two;
  {
    const std::jthread first([&] { one = tune("KOLO_TUNING=" + file()); });
    const std::jthread second([&] { two = bench(other, 2, "--tune -b 64K -e 128K", "KOLO_TUNING=" + file()); });
  }
  EXPECT_EQ(one.code, 0) << one.err;
  EXPECT_EQ(two.code, 0) << two.err;
  EXPECT_TRUE(is_sound(read_file(file())));
}

TEST_F(BenchTune, FlagsThatDoNotGoTogether) {
  EXPECT_NE(bench_problem("--tune --memory session"), "no error");
  EXPECT_NE(bench_problem("--tune --buckets resnet50"), "no error");
  EXPECT_EQ(bench_problem("--tune"), "no error");
  EXPECT_EQ(bench(folder_, 2, "--tune", "KOLO_SHM_METHOD=ring").code, 1);
  EXPECT_EQ(bench(folder_, 2, "--tune", "KOLO_BACKEND=mpi").code, 1);
}

}  // namespace
}  // namespace kolo::testing
