#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "apps/cli/terminal.h"

namespace kolo::cli {

/// A value on the command line or in a file.
struct Given {
  std::string where;  ///< for messages: "--batch", or "batch in run.conf"
  std::string value;
};

/// One row of the help text.
struct FlagText {
  std::string_view section;
  std::string_view name;   ///< "minbytes,b": without dashes, and the letter if it has one
  std::string_view value;  ///< its name in the help text: "N", "FILE"; "[WORD]": may be left out; empty: takes none
  std::string doc;

  std::string long_name() const { return std::string(name.substr(0, name.find(','))); }
  bool may_stand_alone() const { return value.empty() || value.front() == '['; }
};

/// One row of the table that parser, help text and the comparison of ranks come from.
template <class Options>
struct Flag : FlagText {
  std::function<void(Options&, const Given&)> set;      ///< Errors: UsageError, models::ModelError
  std::function<std::string(const Options&)> agreed{};  ///< the value that must be equal on all ranks; empty: none
};

/// The flags of a program.
struct Syntax {
  std::vector<FlagText> flags;    ///< by section, in the order of the help text
  std::vector<FlagText> general;  ///< those that may not stand in a configuration file
  unsigned help_columns = 110;
  bool letters = false;  ///< flags of one letter are accepted
  /// Receives the words that belong to no flag; may throw UsageError. Empty: such a word is a UsageError.
  std::function<void(const std::string&)> on_word{};
};

template <class Options>
std::vector<FlagText> texts_of(std::span<const Flag<Options>> flags) {
  return {flags.begin(), flags.end()};
}

using Values = std::map<std::string, Given>;  ///< by the flag's long name; of one that stands alone "yes"

/// Errors of both: UsageError that names the flag, or the file and the key.
Values parse_command_line(const Syntax& syntax, int argc, const char* const* argv);
Values parse_config(const Syntax& syntax, const std::string& path);

/// The flags as the help text lists them.
std::string describe(const Syntax& syntax);

/// The text that --help or --version ask for, if the command line has one of them.
std::optional<std::string> requested_text(int argc, const char* const* argv, std::string_view program,
                                          const std::function<std::string()>& help);

/// Runs `set` on a value. Errors: UsageError, also for a models::ModelError, which then says where the value is from.
void set_value(const Given& given, const std::function<void(const Given&)>& set);

/// Puts the values into the options, in the order of the table. Errors: UsageError.
template <class Options>
void apply(std::span<const Flag<Options>> flags, const Values& values, Options& options) {
  for (const Flag<Options>& flag : flags) {
    const auto given = values.find(flag.long_name());
    if (given != values.end()) set_value(given->second, [&](const Given& one) { flag.set(options, one); });
  }
}

/// "--lr is 'abc'; it takes ACCEPTED"
[[noreturn]] void refuse(const Given& given, std::string_view accepted);

inline constexpr std::int64_t largest_count = 1'000'000'000'000;  // keeps products of two counts from overflowing

/// Nothing unless all of `text` is a number that fits.
template <class Number>
std::optional<Number> number_in(std::string_view text);
extern template std::optional<std::int64_t> number_in(std::string_view text);
extern template std::optional<std::uint64_t> number_in(std::string_view text);
extern template std::optional<double> number_in(std::string_view text);

// Parsers of values. Errors: UsageError with the accepted values.
std::int64_t count_of(const Given& given, std::int64_t least, std::int64_t largest = largest_count);
double positive_of(const Given& given, std::string_view accepted = "a number above 0, such as 0.1 or 1e-3");
double not_negative_of(const Given& given);
bool switch_of(const Given& given);
std::string text_of(const Given& given, std::string_view accepted);

/// One of some words.
template <class Value>
Value choice_of(const Given& given, std::initializer_list<std::pair<std::string_view, Value>> choices) {
  std::string accepted;
  for (const auto& [word, value] : choices) {
    if (given.value == word) return value;
    accepted += (accepted.empty() ? "" : ", ") + std::string(word);
  }
  refuse(given, "one of " + accepted);
}

}  // namespace kolo::cli
