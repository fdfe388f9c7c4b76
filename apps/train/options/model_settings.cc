#include "apps/train/options/model_settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <system_error>
#include <variant>

#include "apps/train/options/model_flags.h"
#include "models/registry.h"

namespace kolo::train {
namespace {

/// Refuses a flag, or --preset, if what it said is not what the settings have become.
///
/// by   where they are from: "--init FILE"
/// has  "holds"
void check_kept(const Options& options, const models::ModelSettings& said, const models::ModelSettings& now,
                const std::string& by, std::string_view has) {
  const auto preset = options.model_flags.find("preset");
  for (const models::ModelFlag& flag : models::kind_of(options.model).flags) {
    const std::string before = value_text(flag, said), after = value_text(flag, now);
    if (before == after) continue;
    const auto given = options.model_flags.find(flag.name);
    const bool is_switch = std::holds_alternative<models::SettingField<bool>>(flag.field);
    if (given != options.model_flags.end()) {
      throw UsageError(fmt::format("--{}{} contradicts {} (which {} {}); leave --{} out", flag.name,
                                   is_switch ? "" : " " + before, by, has, after, flag.name));
    }
    if (preset != options.model_flags.end() && !is_switch) {
      throw UsageError(fmt::format("--preset {} (--{} {}) contradicts {} (which {} {}); leave --preset out",
                                   preset->second.value, flag.name, before, by, has, after));
    }
  }
}

/// Refuses a file of another kind of model.
void check_kind(const models::ModelKind& kind, const std::string& init, std::string_view held) {
  const std::string_view name = models::present_name(held);
  if (name == kind.name) return;
  const auto known = models::known_models();
  if (std::ranges::find(known, name) != known.end()) {
    throw UsageError(
        fmt::format("{} holds a model of the kind {}; say --model {}, or give another --init", init, held, name));
  }
  throw UsageError(fmt::format(
      "{} holds a model of the kind {}; this kolo-train was built without it: give another --init, or, if you have "
      "renamed the kind, put .formerly = {{\"{}\"}} into its row and build again",
      init, held, held));
}

/// Refuses a file whose tensors do not say the sizes of a model of this kind.
void check_own(const models::ModelKind& kind, const std::string& init, const models::ModelSettings& settings) {
  for (const models::ModelFlag& flag : kind.flags) {
    const auto own = settings.own.find(flag.name);
    if (own == settings.own.end() || own->second >= flag.least) continue;
    throw UsageError(fmt::format("{} holds no model of the kind {} (its tensors do not say --{}); give another --init",
                                 init, kind.name, flag.name));
  }
}

}  // namespace

void take_sizes(const models::ModelKind& kind, const std::string& init, const models::Pretrained& pretrained,
                models::ModelSettings& settings) {
  const std::string said = pretrained.said_model();
  if (!said.empty()) check_kind(kind, init, said);
  if (kind.sizes) {
    kind.sizes([&](std::string_view tensor, std::size_t i) { return pretrained.extent(tensor, i); }, settings);
    return check_own(kind, init, settings);
  }
  const std::string_view name = models::name_in_files(kind);
  if (!said.empty() && said != name) return;     // written under its new name, without sizes
  if (!models::Pretrained::knows(name)) return;  // the shapes must be the model's
  check_kind(kind, init, pretrained.model());
  pretrained.settings(settings);
}

std::optional<models::Pretrained> open_pretrained(const Options& options) {
  if (options.init.empty()) return std::nullopt;
  return models::Pretrained(options.init);
}

models::ModelSettings model_settings(const Options& options, const std::optional<models::Pretrained>& pretrained) {
  models::ModelSettings settings = given_settings(options);
  settings.precision = options.precision;
  settings.tf32 = options.tf32;
  if (pretrained) {
    const models::ModelSettings said = settings;
    take_sizes(models::kind_of(options.model), options.init, *pretrained, settings);
    check_kept(options, said, settings, "--init " + options.init, "holds");
  }
  if (options.seq.value_or(0) > settings.llama.positions) {
    const auto& flags = models::kind_of(options.model).flags;
    const bool may_have_more =
        !pretrained && std::ranges::find(flags, "positions", &models::ModelFlag::name) != flags.end();
    throw UsageError(fmt::format("--seq {} is longer than the {} positions of the model; give a smaller one{}",
                                 *options.seq, settings.llama.positions, may_have_more ? ", or more --positions" : ""));
  }
  return settings;
}

std::string tokenizer_file(const Options& options) {
  if (options.tokenizer_given || options.init.empty() || !options.takes_tokens()) return options.tokenizer;
  const auto folder = models::model_folder(options.init);
  const std::filesystem::path file = folder.value_or("") / "tokenizer.json";
  std::error_code none;
  return folder && std::filesystem::is_regular_file(file, none) ? file.string() : "";
}

void fit_to_tokenizer(models::ModelSettings& settings, const Options& options, const models::Tokenizer& tokenizer) {
  std::int64_t& vocabulary = settings.llama.vocabulary;
  const bool given = options.model_flags.contains("vocab");
  if (!given && options.init.empty()) vocabulary = tokenizer.size();
  if (vocabulary >= tokenizer.size()) return;
  throw UsageError(fmt::format("a vocabulary of {} has no room for the {} tokens of --tokenizer {}; {}", vocabulary,
                               tokenizer.size(), options.tokenizer,
                               given ? "leave --vocab out" : "give the tokenizer of --init"));
}

std::int64_t positions_of(const Options& options, const models::ModelSettings& settings) {
  return options.seq.value_or(settings.llama.positions);
}

void fit_to_data(models::ModelSettings& settings, const Options& options, const Corpus& corpus, Session& session) {
  if (!corpus.images) return;
  const models::ModelKind& kind = models::kind_of(options.model);
  const models::Dataset& images = corpus.images->train;
  const models::ModelSettings said = settings;
  settings.inputs = images.input_size();
  settings.classes = images.classes;
  settings.cnn.channels = images.channels;
  settings.cnn.height = images.rows;
  settings.cnn.width = images.columns;
  if (options.init.empty() && kind.fit != nullptr) kind.fit(settings);
  check_kept(options, said, settings, "the data", "have");
  if (kind.reduces != nullptr && kind.reduces(settings) && session.size() > 1) {
    settings.reduce = [&session](Tensor sums) {
      // Ranks remember few shapes of a name.
      const std::string name = fmt::format("statistics of a batch/{}", sums.elements());
      session.all_reduce_async(name, sums).wait(nullptr);  // on a GPU its default stream waits, the program does not
    };
  }
}

}  // namespace kolo::train
