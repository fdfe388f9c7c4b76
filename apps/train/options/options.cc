#include "apps/train/options/options.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/program_options.hpp>
#include <map>
#include <sstream>

#include <kolo/config.h>

#include "apps/cli/files.h"
#include "apps/cli/flags.h"
#include "apps/train/options/conflicts.h"
#include "apps/train/options/recipe.h"
#include "apps/train/options/version.h"
#include "models/util/error.h"

namespace kolo::train {
namespace {

namespace po = boost::program_options;

using Values = std::map<std::string, Given>;  // by the flag's name

constexpr unsigned help_columns = 110;

void add_flags(po::options_description& to, std::string_view section) {
  for (const Flag& flag : flags()) {
    if (flag.section != section) continue;
    auto* const value = po::value<std::string>()->value_name(std::string(flag.value));
    if (flag.value.empty()) value->implicit_value("yes")->zero_tokens();
    to.add_options()(std::string(flag.name).c_str(), value, flag.doc.c_str());
  }
}

/// What may stand in a configuration file.
po::options_description settable_options() {
  po::options_description all;
  for (std::string_view section : flag_sections()) {
    po::options_description part(std::string(section), help_columns, help_columns / 2);
    add_flags(part, section);
    all.add(part);
  }
  return all;
}

po::options_description general_options() {
  po::options_description general("General", help_columns, help_columns / 2);
  general.add_options()("config", po::value<std::string>()->value_name("FILE"),
                        "flags as lines 'batch = 64'; # begins a comment; the command line wins")(
      "help", "print this text")("version", "print the version");
  return general;
}

/// Boost's words for what is wrong with the form of a line or of a command line.
[[noreturn]] void refuse_form(const std::string& where, const po::error& error) {
  throw UsageError(fmt::format("{}{}; --help shows how to write it", where, error.what()));
}

void put(Values& values, const std::string& name, Given given) {
  const std::string where = given.where;
  if (!values.emplace(name, std::move(given)).second) throw UsageError(where + " is given twice; keep one");
}

/// What a flag means that stands there without a value.
std::string switched_on(std::string_view name) {
  const auto flag = std::ranges::find(flags(), name, &Flag::name);
  return flag != flags().end() && flag->value.empty() ? "yes" : "";
}

Values on_command_line(int argc, const char* const* argv) {
  // No abbreviations (a new flag would change what they mean) and no one-letter flags, so that -3 is a value.
  constexpr int style = po::command_line_style::allow_long | po::command_line_style::long_allow_next |
                        po::command_line_style::long_allow_adjacent;
  po::options_description all = settable_options();
  all.add(general_options());
  Values values;
  try {
    const auto parsed = po::command_line_parser(argc, argv).options(all).style(style).allow_unregistered().run();
    for (const auto& option : parsed.options) {
      const std::string text = option.original_tokens.empty() ? option.string_key : option.original_tokens.front();
      if (option.unregistered) throw UsageError(fmt::format("unknown flag '{}'; --help lists them all", text));
      if (option.position_key >= 0) {
        throw UsageError(fmt::format("'{}' belongs to no flag; write --flag value (--help lists the flags)", text));
      }
      put(values, option.string_key,
          {fmt::format("--{}", option.string_key),
           option.value.empty() ? switched_on(option.string_key) : option.value.front()});
    }
  } catch (const po::error& error) {
    refuse_form("", error);
  }
  return values;
}

Values in_file(const std::string& path) {
  std::istringstream file(read_config_text(path));
  Values values;
  try {
    for (const auto& option : po::parse_config_file(file, settable_options(), true).options) {
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

void set(const Flag& flag, const Given& given, Options& options) {
  try {
    flag.set(options, given);
  } catch (const models::ModelError& error) {  // of a word that stands for a choice
    throw UsageError(fmt::format("{}: {}", given.where, error.what()));
  }
}

std::string help_text() {
  std::ostringstream text;
  text << "kolo-train trains a model on all ranks that mpirun starts: each holds the whole model and takes a share of "
          "every\n"
          "step's examples. Without a launcher it trains on one.\n\n"
          "usage: [mpirun -np N] kolo-train [--flag value]...\n";
  text << settable_options().add(general_options());
  text << "\nRuntime (environment variables, the same for all programs that use kolo; here\nKOLO_FUSION_BYTES is 1M "
          "and KOLO_SPIN_US 1000 unless they are set):\n"
       << settings_help();
  return text.str();
}

}  // namespace

Options parse_options(int argc, const char* const* argv) {
  Values values = on_command_line(argc, argv);
  std::string config;
  if (const auto given = values.extract("config")) {
    config = given.mapped().value;
    values.merge(in_file(config));
  }
  Options options;
  for (const Flag& flag : flags()) {
    const auto given = values.find(std::string(flag.name));
    if (given != values.end()) set(flag, given->second, options);
  }
  const auto said = [&](std::string_view flag) { return values.contains(std::string(flag)); };
  fill_in(options, said);
  check_conflicts(options, said, config);
  return options;
}

std::optional<std::string> requested_text(int argc, const char* const* argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view word(argv[i]);
    if (word == "--help" || word == "-h") return help_text();
    if (word == "--version") return fmt::format("kolo-train {}\n", version);
  }
  return std::nullopt;
}

std::vector<Agreed> agreed_part(const Options& options) {
  std::vector<Agreed> all;
  for (const Flag& flag : flags()) {
    if (flag.agreed) all.push_back({fmt::format("--{}", flag.name), flag.agreed(options)});
  }
  return all;
}

}  // namespace kolo::train
