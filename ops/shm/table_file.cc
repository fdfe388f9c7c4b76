#include "ops/shm/table_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <sstream>
#include <string_view>

#include <kolo/error.h>

namespace kolo {
namespace {

constexpr std::string_view title = "kolo tuning 1";
constexpr std::string_view version = "version " KOLO_VERSION;
constexpr std::array<std::string_view, 3> ways{"ring", "read", "mapped"}, reaches{"none", "readable", "mapped"};
constexpr std::array<std::string_view, 2> places{"out-of-place", "in-place"};

[[noreturn]] void refuse(const std::string& why) {
  throw Error(ErrorCode::invalid_argument, why);
}

/// The words of one line.
class Words {
 public:
  explicit Words(const std::string& line) : line_(line), words_(line) {}
  std::string next() {
    std::string word;
    if (!(words_ >> word)) damaged();
    return word;
  }
  std::int64_t number(std::int64_t least, std::int64_t most) {
    std::int64_t value = 0;
    if (!(words_ >> value) || value < least || value > most) damaged();
    return value;
  }
  std::size_t one_of(std::span<const std::string_view> names) {
    const auto found = std::ranges::find(names, next());
    if (found == names.end()) damaged();
    return static_cast<std::size_t>(found - names.begin());
  }
  OpKind kind() {
    const std::string word = next();
    for (int kind = 0; kind < static_cast<int>(OpKind::send_recv); ++kind) {
      if (to_string(static_cast<OpKind>(kind)) == word) return static_cast<OpKind>(kind);
    }
    damaged();
  }
  void end() {
    if (std::string word; words_ >> word) damaged();
  }

 private:
  [[noreturn]] void damaged() const { refuse(fmt::format("its line '{}' is damaged", line_)); }

  const std::string& line_;
  std::istringstream words_;
};

}  // namespace

std::string text_of_tables(const std::map<int, ShmTable>& tables, const std::string& machine) {
  std::string text = fmt::format("{}\n{}\nmachine {}\n", title, version, machine);
  std::size_t rows = 0;
  for (const auto& [ranks, table] : tables) {
    for (const auto& [key, choice] : table) {
      const auto& [of, place] = key;
      text += fmt::format("{} {} {} {} {} {} {} {}\n", ranks, to_string(of.kind), of.size_bits, of.element_bytes,
                          reaches[static_cast<std::size_t>(place.reach)], places[place.in_place ? 1 : 0],
                          ways[static_cast<std::size_t>(choice.way)], choice.bytes);
      ++rows;
    }
  }
  return text + fmt::format("{} rows\n", rows);
}

namespace {

void take_text(std::istream& lines, const std::string& machine, std::map<int, ShmTable>& tables) {
  std::string line;
  if (!std::getline(lines, line) || line != title) refuse("it is no tuning file of this format");
  if (!std::getline(lines, line) || line != version) refuse(fmt::format("it is of {}, and this is {}", line, version));
  if (!std::getline(lines, line) || line != "machine " + machine)
    refuse(fmt::format("it is of {}, and this is {}", line, machine));
  for (std::size_t rows = 0; std::getline(lines, line); ++rows) {
    if (line == fmt::format("{} rows", rows)) return;
    Words words(line);
    const auto ranks = static_cast<int>(words.number(2, 1 << 20));
    ShmClass of{words.kind()};
    of.size_bits = static_cast<std::uint8_t>(words.number(0, 63));
    of.element_bytes = static_cast<std::uint8_t>(words.number(1, 8));
    ShmPlace place{static_cast<ShmReach>(words.one_of(reaches))};
    place.in_place = words.one_of(places) == 1;
    ShmChoice choice{static_cast<ShmWay>(words.one_of(ways))};
    choice.bytes = words.number(64, 1 << 30);
    words.end();
    tables[ranks][{of, place}] = choice;
  }
  refuse("its end is missing");
}

}  // namespace

std::map<int, ShmTable> tables_of_text(const std::string& text, const std::string& machine) {
  std::istringstream lines(text);
  std::map<int, ShmTable> tables;
  do {
    take_text(lines, machine, tables);
  } while (lines.peek() != std::istringstream::traits_type::eof());
  return tables;
}

}  // namespace kolo
