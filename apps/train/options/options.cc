#include "apps/train/options/options.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <span>
#include <string_view>

#include <kolo/config.h>

#include "apps/train/options/flags.h"
#include "apps/train/options/model_flags.h"
#include "models/registry.h"

namespace kolo::train {
namespace {

cli::Syntax syntax() {
  return {.flags = cli::texts_of(flags()),
          .general = {
              {"General", "config", "FILE", "flags as lines 'batch = 64'; # begins a comment; the command line wins"},
              {"General", "help", "", "print this text"},
              {"General", "version", "", "print the version"}}};
}

/// Fills in what no flag set.
void fill_in(Options& options, const std::function<bool(std::string_view)>& explicitly_set) {
  const models::Recipe& recipe = recipe_of(options);
  const auto put = [&](std::string_view flag, auto& field, const auto& value) {
    if (!explicitly_set(flag)) field = value;
  };
  if (!options.epochs && !options.steps) options.epochs = recipe.epochs;
  options.batch_given = explicitly_set("batch");
  put("batch", options.batch, recipe.batch);
  put("optimizer", options.optimizer, recipe.optimizer);
  put("lr", options.lr, options.optimizer == "sgd" ? recipe.sgd_lr : recipe.adam_lr);
  put("beta2", options.beta2, recipe.beta2);
  put("weight-decay", options.weight_decay, options.optimizer == "adamw" ? recipe.weight_decay : 0.0);
  put("schedule", options.schedule, recipe.schedule);
  put("warmup", options.warmup, recipe.warmup);
  put("clip", options.clip, recipe.clip);
  options.clip_given = explicitly_set("clip");
}

std::string help_text() {
  return "kolo-train trains a model on all ranks that mpirun or torchrun starts: each holds the whole model and takes "
         "a share of every\nstep's examples. Without a launcher it trains on one.\n\n"
         "usage: [mpirun -np N] kolo-train [--flag value]...\n       kolo-train tokenizer --help\n" +
         cli::describe(syntax()) +
         "\nRuntime (environment variables, the same for all programs that use kolo; here\nKOLO_FUSION_BYTES is 1M "
         "and KOLO_SPIN_US 1000 unless they are set):\n" +
         settings_help();
}

}  // namespace

Options parse_options(int argc, const char* const* argv) {
  cli::Values values = cli::parse_command_line(syntax(), argc, argv);
  std::string config;
  if (const auto given = values.extract("config")) {
    config = given.mapped().value;
    values.merge(cli::parse_config(syntax(), config));
  }
  Options options;
  cli::apply(flags(), values, options);
  const auto explicitly_set = [&](std::string_view flag) { return values.contains(std::string(flag)); };
  fill_in(options, explicitly_set);
  check_conflicts(options, explicitly_set, config);
  (void)given_settings(options);  // so that a value is refused before data are read
  return options;
}

bool Options::takes_tokens() const {
  return models::kind_of(model).data == models::DataKind::tokens;
}

namespace {

/// Whether the command line has --preset help.
bool asks_for_presets(std::span<const char* const> words) {
  const auto is = [](std::string_view word) { return [word](std::string_view other) { return other == word; }; };
  const auto flag = std::ranges::find_if(words, is("--preset"));
  const bool named = flag != words.end() && std::next(flag) != words.end() && is("help")(*std::next(flag));
  return named || std::ranges::any_of(words, is("--preset=help"));
}

}  // namespace

std::optional<std::string> requested_text(int argc, const char* const* argv) {
  if (asks_for_presets({argv, static_cast<std::size_t>(argc)})) return presets_text();
  return cli::requested_text(argc, argv, "kolo-train", help_text);
}

namespace {

template <class Which>
std::vector<cli::Agreed> agreed_of(const Options& options, Which which) {
  std::vector<cli::Agreed> all;
  for (const auto& flag : flags()) {
    if (flag.agreed && which(flag)) all.push_back({fmt::format("--{}", flag.name), flag.agreed(options)});
  }
  return all;
}

}  // namespace

std::vector<cli::Agreed> agreed_part(const Options& options) {
  return agreed_of(options, [](const cli::FlagText&) { return true; });
}

std::vector<cli::Agreed> shaping_part(const Options& options) {
  return agreed_of(options, [](const cli::FlagText& flag) {
    return flag.section != checkpoint_section && flag.section != output_section;
  });
}

std::vector<cli::Agreed> measured_part(const Options& options) {
  return agreed_of(options, [](const cli::FlagText& flag) {
    const bool trains_only = flag.name == "init" || flag.name == "augment";
    return (flag.section == model_section || flag.section == data_section) && !trains_only;
  });
}

}  // namespace kolo::train
