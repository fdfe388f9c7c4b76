// What kolo-bench --tune writes, and a session reads.

#include "ops/shm/table_file.h"

#include <gtest/gtest.h>

#include <string>

#include <kolo/error.h>

namespace kolo {
namespace {

const std::string machine = "Some Processor 9000, 8 cores for each third-level cache, ptrace scope 0";
const std::map<int, ShmTable> tables{
    {2,
     {{{{OpKind::all_reduce, 20, 4}, {ShmReach::readable, true}}, {ShmWay::ring, 65536}},
      {{{OpKind::scatter, 28, 8}, {ShmReach::mapped, false}}, {ShmWay::mapped, 65536}}}},
    {4, {{{{OpKind::all_to_all, 17, 1}, {ShmReach::none, false}}, {ShmWay::read, 262144}}}}};

std::string problem_of(const std::string& text) {
  try {
    (void)tables_of_text(text, machine);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    return error.what();
  }
  return "";
}

TEST(ShmTableFile, ReadsWhatItWrites) {
  EXPECT_EQ(tables_of_text(text_of_tables(tables, machine), machine), tables);
  EXPECT_TRUE(tables_of_text(text_of_tables({}, machine), machine).empty());
}

TEST(ShmTableFile, RefusesWhatIsOfAnotherMachineOrVersion) {
  const std::string text = text_of_tables(tables, machine);
  EXPECT_EQ(problem_of(text), "");
  EXPECT_NE(
      problem_of(text_of_tables(tables, "Another Processor")).find("Another Processor, and this is Some Processor"),
      std::string::npos);
  std::string other = text;
  other.replace(other.find("version "), 9, "version 9");
  EXPECT_NE(problem_of(other).find("it is of version 9"), std::string::npos);
  EXPECT_EQ(problem_of("{}"), "it is no tuning file of this format");
  EXPECT_EQ(problem_of(""), "it is no tuning file of this format");
}

TEST(ShmTableFile, RefusesEveryTruncation) {
  const std::string text = text_of_tables(tables, machine);
  for (std::size_t length = 0; length + 1 < text.size(); ++length) EXPECT_NE(problem_of(text.substr(0, length)), "");
}

TEST(ShmTableFile, RefusesDamagedRows) {
  const std::string text = text_of_tables(tables, machine);
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string changed = text;
    return changed.replace(changed.find(from), from.size(), to);
  };
  for (const auto& damaged :
       {with("2 all_reduce", "0 all_reduce"), with("all_reduce 20", "all_reduce 99"), with("scatter", "scatters"),
        with("scatter", "send_recv"), with("readable", "far"), with(" in-place", ""), with("mapped 65536", "mapped -5"),
        with("mapped 65536", "mapped 65536 7"), with("3 rows", "4 rows")})
    EXPECT_NE(problem_of(damaged), "") << damaged;
}

}  // namespace
}  // namespace kolo
