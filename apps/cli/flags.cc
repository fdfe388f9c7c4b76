#include "apps/cli/flags.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/program_options.hpp>
#include <charconv>
#include <cmath>
#include <sstream>

#include "apps/cli/files.h"
#include "apps/cli/version.h"
#include "models/util/error.h"

namespace kolo::cli {
namespace {

namespace po = boost::program_options;

void add_sections(po::options_description& all, const std::vector<FlagText>& flags, unsigned columns) {
  for (auto flag = flags.begin(); flag != flags.end();) {
    const std::string_view section = flag->section;
    po::options_description part(std::string(section), columns, columns / 2);
    for (; flag != flags.end() && flag->section == section; ++flag) {
      auto* const value = po::value<std::string>()->value_name(std::string(flag->value));
      if (flag->may_stand_alone()) value->implicit_value("yes", "");
      if (flag->value.empty()) value->zero_tokens();
      part.add_options()(std::string(flag->name).c_str(), value, flag->doc.c_str());
    }
    all.add(part);
  }
}

po::options_description described(const Syntax& syntax) {
  po::options_description all;
  add_sections(all, syntax.flags, syntax.help_columns);
  add_sections(all, syntax.general, syntax.help_columns);
  return all;
}

/// Boost's words for what is wrong with the form of a line or of a command line.
[[noreturn]] void refuse_form(const std::string& where, const po::error& error) {
  throw UsageError(fmt::format("{}{}; --help shows how to write it", where, error.what()));
}

void put(Values& values, const std::string& name, Given given) {
  const std::string where = given.where;
  if (!values.emplace(name, std::move(given)).second) throw UsageError(where + " is given twice; keep one");
}

/// The value of a flag that was given without one.
std::string value_without_one(const Syntax& syntax, const std::string& name) {
  const auto flag = std::ranges::find(syntax.flags, name, &FlagText::long_name);
  return flag != syntax.flags.end() && flag->may_stand_alone() ? "yes" : "";
}

}  // namespace

Values parse_command_line(const Syntax& syntax, int argc, const char* const* argv) {
  namespace style = po::command_line_style;
  // No abbreviations: a new flag would change what they mean. Without letters -3 is a value.
  constexpr int words = style::allow_long | style::long_allow_next | style::long_allow_adjacent;
  constexpr int letters =
      style::allow_short | style::allow_dash_for_short | style::short_allow_next | style::short_allow_adjacent;
  Values values;
  try {
    const po::options_description all = described(syntax);
    const auto parsed = po::command_line_parser(argc, argv)
                            .options(all)
                            .style(syntax.letters ? words | letters : words)
                            .allow_unregistered()
                            .run();
    for (const auto& option : parsed.options) {
      const std::string text = option.original_tokens.empty() ? option.string_key : option.original_tokens.front();
      if (option.unregistered) throw UsageError(fmt::format("unknown flag '{}'; --help lists them all", text));
      if (option.position_key >= 0) {
        if (!syntax.on_word)
          throw UsageError(fmt::format("'{}' belongs to no flag; write --flag value (--help lists the flags)", text));
        syntax.on_word(text);
        continue;
      }
      const std::string flag = text.substr(0, text.find('='));
      put(values, option.string_key,
          {flag.starts_with("--") ? flag : flag.substr(0, 2),
           option.value.empty() ? value_without_one(syntax, option.string_key) : option.value.front()});
    }
  } catch (const po::error& error) {
    refuse_form("", error);
  }
  return values;
}

Values parse_config(const Syntax& syntax, const std::string& path) {
  std::istringstream file(read_config_text(path));
  Values values;
  try {
    po::options_description settable;
    add_sections(settable, syntax.flags, syntax.help_columns);
    for (const auto& option : po::parse_config_file(file, settable, true).options) {
      const std::string where = fmt::format("{} in {}", option.string_key, path);
      if (option.unregistered) {
        throw UsageError(fmt::format("{} has an unknown key '{}'; --help lists the flags, whose names are the keys",
                                     path, option.string_key));
      }
      put(values, option.string_key, {where, option.value.empty() ? "" : option.value.front()});
    }
  } catch (const po::error& error) {
    refuse_form(path + ": ", error);
  }
  return values;
}

std::string describe(const Syntax& syntax) {
  std::ostringstream text;
  text << described(syntax);
  return text.str();
}

std::optional<std::string> requested_text(int argc, const char* const* argv, std::string_view program,
                                          const std::function<std::string()>& help) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view word(argv[i]);
    if (word == "--help" || word == "-h") return help();
    if (word == "--version") return fmt::format("{} {}\n", program, version);
  }
  return std::nullopt;
}

void set_value(const Given& given, const std::function<void(const Given&)>& set) {
  try {
    set(given);
  } catch (const models::ModelError& error) {  // of a word that stands for a choice
    throw UsageError(fmt::format("{}: {}", given.where, error.what()));
  }
}

void refuse(const Given& given, std::string_view accepted) {
  throw UsageError(fmt::format("{} is '{}'; it takes {}", given.where, given.value, accepted));
}

template <class Number>
std::optional<Number> number_in(std::string_view text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}
template std::optional<std::int64_t> number_in(std::string_view text);
template std::optional<std::uint64_t> number_in(std::string_view text);
template std::optional<double> number_in(std::string_view text);

std::int64_t count_of(const Given& given, std::int64_t least, std::int64_t largest) {
  const auto value = number_in<std::int64_t>(given.value);
  if (!value || *value < least || *value > largest)
    refuse(given, fmt::format("a whole number from {} to {}", least, largest));
  return *value;
}

double positive_of(const Given& given, std::string_view accepted) {
  const auto value = number_in<double>(given.value);
  if (!value || !std::isfinite(*value) || *value <= 0) refuse(given, accepted);
  return *value;
}

double not_negative_of(const Given& given) {
  const auto value = number_in<double>(given.value);
  if (!value || !std::isfinite(*value) || *value < 0) refuse(given, "a number from 0 on, such as 0.1 or 1e-3");
  return *value;
}

bool switch_of(const Given& given) {
  if (given.value == "yes" || given.value == "true") return true;
  if (given.value != "no" && given.value != "false") refuse(given, "yes or no");
  return false;
}

std::string text_of(const Given& given, std::string_view accepted) {
  if (given.value.empty()) refuse(given, accepted);
  return given.value;
}

}  // namespace kolo::cli
