#include "apps/train/options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <boost/program_options.hpp>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include <kolo/config.h>

#include "apps/train/flags.h"
#include "apps/train/version.h"
#include "models/registry.h"

namespace kolo::train {
namespace {

namespace po = boost::program_options;
namespace fs = std::filesystem;

using Values = std::map<std::string, Given>;  // by the flag's name

constexpr unsigned help_columns = 110;

void add_flags(po::options_description& to, std::string_view section) {
  for (const Flag& flag : flags()) {
    if (flag.section != section) continue;
    to.add_options()(std::string(flag.name).c_str(), po::value<std::string>()->value_name(std::string(flag.value)),
                     flag.doc.c_str());
  }
}

/// What may stand in a configuration file.
po::options_description settable_options() {
  po::options_description all;
  for (std::string_view section : {"Model", "Data", "Training", "Output"}) {
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
          {fmt::format("--{}", option.string_key), option.value.empty() ? "" : option.value.front()});
    }
  } catch (const po::error& error) {
    refuse_form("", error);
  }
  return values;
}

Values in_file(const std::string& path) {
  std::ifstream file(path);
  if (!file || fs::is_directory(path)) {
    throw UsageError(fmt::format("cannot read {} ({}); give --config a file of lines 'flag = value'", path,
                                 file ? "it is a folder" : "it is missing or not readable"));
  }
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

void fill_in_defaults(Options& options, const Values& values) {
  const models::TrainingDefaults defaults = models::training_defaults(options.model);
  if (!options.epochs && !options.steps) options.epochs = defaults.epochs;
  if (!values.contains("batch")) options.batch = defaults.batch;
  if (!values.contains("lr")) options.lr = defaults.lr;
  if (!values.contains("momentum")) options.momentum = defaults.momentum;
}

std::string help_text() {
  std::ostringstream text;
  text << "kolo-train trains a model on all ranks that mpirun starts: each holds the whole model and takes a share of "
          "every\n"
          "step's examples. Without a launcher it trains on one.\n\n"
          "usage: [mpirun -np N] kolo-train [--flag value]...\n";
  text << settable_options().add(general_options());
  text << "\nRuntime (environment variables, the same for all programs that use kolo):\n" << settings_help();
  return text.str();
}

}  // namespace

Options parse_options(int argc, const char* const* argv) {
  Values values = on_command_line(argc, argv);
  if (const auto config = values.extract("config")) values.merge(in_file(config.mapped().value));
  Options options;
  for (const Flag& flag : flags()) {
    const auto given = values.find(std::string(flag.name));
    if (given != values.end()) flag.set(options, given->second);
  }
  if (!options.log.empty() && options.log == options.save) {
    throw UsageError(fmt::format("--log and --save both name {}; give each a file of its own", options.log));
  }
  fill_in_defaults(options, values);
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

std::string agreed_part(const Options& options) {
  return fmt::format(
      "{} sizes {} init {} order {} epochs {} steps {} batch {} {} lr {} momentum {} seed {} eval-every {}",
      options.model, fmt::join(options.sizes, ","), !options.init.empty(), static_cast<bool>(options.order),
      options.epochs.value_or(-1), options.steps.value_or(-1), options.batch, options.optimizer, options.lr,
      options.momentum, options.seed, options.eval_every.value_or(-1));
}

}  // namespace kolo::train
