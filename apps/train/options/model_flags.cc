#include "apps/train/options/model_flags.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <type_traits>
#include <variant>

#include "apps/memory.h"
#include "apps/parallel_model.h"

namespace kolo::train {
namespace {

using cli::Given;
using models::ModelFlag;
using models::ModelKind;
using models::ModelSettings;

/// Calls `use` with the value of a flag in settings: a number, a truth value or a list.
template <class Use>
auto with_value(const ModelFlag& flag, ModelSettings& settings, Use use) {
  return std::visit(
      [&](auto field) {
        if constexpr (std::is_same_v<decltype(field), std::monostate>) {
          return use(settings.own.try_emplace(std::string(flag.name), flag.usual).first->second);
        } else {
          return use(field(settings));
        }
      },
      flag.field);
}

// What is given, as the type of the value. Errors: UsageError that says what the flag takes.

void take(const ModelFlag& flag, const Given& given, std::int64_t& value) {
  value = cli::count_of(given, flag.least, flag.most);
}
void take(const ModelFlag&, const Given& given, double& value) {
  value = cli::positive_of(given);
}
void take(const ModelFlag&, const Given& given, bool& value) {
  value = cli::switch_of(given);
}
void take(const ModelFlag& flag, const Given& given, std::vector<std::int64_t>& values) {
  values.clear();
  std::string_view rest = given.value;
  for (bool more = true; more;) {
    const auto comma = rest.find(',');
    const auto value = cli::number_in<std::int64_t>(rest.substr(0, comma));
    if (!value || *value < 1) cli::refuse(given, flag.accepts);
    values.push_back(*value);
    more = comma != rest.npos;
    if (more) rest.remove_prefix(comma + 1);
  }
}

std::string_view value_name(const ModelFlag& flag) {
  constexpr std::array<std::string_view, std::variant_size_v<decltype(flag.field)>> names{"N", "N", "X", "", "N,N,..."};
  return names[flag.field.index()];
}

std::string doc_of(const ModelKind& kind, const ModelFlag& flag) {
  const bool own = std::holds_alternative<std::monostate>(flag.field);
  return fmt::format("{}: {}{}", kind.name, flag.doc, own ? fmt::format(" (default: {})", flag.usual) : "");
}

/// A row whose value is kept as it is given.
cli::Flag<Options> row(std::string_view name, std::string_view value, std::string doc) {
  return {
      {"", name, value, std::move(doc)},
      [name](Options& options, const Given& given) { options.model_flags.insert_or_assign(std::string(name), given); },
      [name](const Options& options) {
        const auto found = options.model_flags.find(name);
        return found == options.model_flags.end() ? "none" : found->second.value;
      }};
}

/// Whether its sizes are those that the kind has without any.
bool is_usual(const ModelKind& kind, const models::Preset& preset) {
  ModelSettings named;
  preset.put(named);
  return std::ranges::all_of(
      kind.flags, [&](const ModelFlag& flag) { return value_text(flag, named) == value_text(flag, ModelSettings()); });
}

cli::Flag<Options> preset_row() {
  std::vector<std::string> known;
  for (const ModelKind& kind : models::model_kinds()) {
    if (kind.presets.empty()) continue;
    std::vector<std::string> names;
    for (const models::Preset& preset : kind.presets)
      names.push_back(fmt::format("{}{}", preset.name, is_usual(kind, preset) ? " (the default)" : ""));
    known.push_back(fmt::format("{}: {}", kind.name, fmt::join(names, ", ")));
  }
  return row("preset", "NAME",
             fmt::format("sizes by name, and the recipe that suits them; other flags change single ones; help lists "
                         "them with their memory ({})",
                         fmt::join(known, "; ")));
}

/// The preset that was asked for; null: none.
const models::Preset* preset_of(const Options& options) {
  const auto given = options.model_flags.find("preset");
  if (given == options.model_flags.end()) return nullptr;
  const models::Preset* preset = nullptr;
  cli::set_value(given->second,
                 [&](const Given& one) { preset = &models::preset_of(models::kind_of(options.model), one.value); });
  return preset;
}

}  // namespace

std::string kinds_with(const std::function<bool(const ModelKind&)>& has, std::string_view separator) {
  std::vector<std::string_view> names;
  for (const ModelKind& kind : models::model_kinds()) {
    if (has(kind)) names.push_back(kind.name);
  }
  return fmt::format("{}", fmt::join(names, separator));
}

std::vector<cli::Flag<Options>> model_kind_flags() {
  std::vector<cli::Flag<Options>> rows{preset_row()};
  for (const ModelKind& kind : models::model_kinds()) {
    for (const ModelFlag& flag : kind.flags) {
      const auto same = std::ranges::find(rows, flag.name, &cli::FlagText::name);
      if (same != rows.end()) {
        same->doc += "; " + doc_of(kind, flag);
      } else {
        rows.push_back(row(flag.name, value_name(flag), doc_of(kind, flag)));
      }
    }
  }
  return rows;
}

std::string value_text(const ModelFlag& flag, const ModelSettings& settings) {
  ModelSettings copy = settings;
  return with_value(flag, copy, [&](const auto& value) -> std::string {
    using Value = std::decay_t<decltype(value)>;
    if constexpr (std::is_same_v<Value, bool>)
      return value ? "yes" : flag.otherwise.empty() ? "no" : std::string(flag.otherwise);
    if constexpr (std::is_arithmetic_v<Value>)
      return fmt::format("{}", value);
    else
      return fmt::format("{}", fmt::join(value, ","));
  });
}

ModelSettings given_settings(const Options& options) {
  ModelSettings settings;
  if (const models::Preset* const preset = preset_of(options)) preset->put(settings);
  for (const ModelFlag& flag : models::kind_of(options.model).flags) {
    const auto given = options.model_flags.find(flag.name);
    with_value(flag, settings, [&](auto& value) {
      if (given != options.model_flags.end()) take(flag, given->second, value);
    });
  }
  return settings;
}

const models::Recipe& recipe_of(const Options& options) {
  const ModelKind& kind = models::kind_of(options.model);
  const models::Preset* const preset = kind.presets.empty() ? nullptr : preset_of(options);
  return preset == nullptr ? kind.recipe : preset->recipe;
}

namespace {

/// Bytes of values, gradients and the optimizer's state on the rank that has most, with the state shared as --zero 1
/// does.
std::uint64_t bytes_per_rank(const models::Model& model, const models::Recipe& recipe, std::uint64_t ranks) {
  const std::uint64_t states = recipe.optimizer == "sgd" ? 1 : 2;
  std::uint64_t floats = 0;
  for (const models::Parameter& parameter : model.parameters()) {
    const auto elements = static_cast<std::uint64_t>(parameter.shape.elements());
    const std::uint64_t updated = elements >= least_sharded ? (elements + ranks - 1) / ranks : elements;
    floats += elements + (parameter.trained ? elements + states * updated : 0);
  }
  return floats * sizeof(float);
}

std::string preset_text(const ModelKind& kind, const models::Preset& preset) {
  ModelSettings settings;
  preset.put(settings);
  const auto model = kind.make(settings);
  const models::Recipe& recipe = preset.recipe;
  std::vector<std::string> sizes;
  for (const ModelFlag& flag : kind.flags) {
    if (!std::holds_alternative<models::SettingField<bool>>(flag.field))
      sizes.push_back(fmt::format("{} {}", flag.name, value_text(flag, settings)));
  }
  const auto bytes = [&](std::uint64_t ranks) { return format_bytes(bytes_per_rank(*model, recipe, ranks)); };
  return fmt::format("  {:<10}{:>12}{:>12}{:>12}{:>12}{:>10}{:>9}{:>7}\n            {}\n", preset.name,
                     models::gradient_elements(*model), bytes(1), bytes(2), bytes(8),
                     recipe.optimizer == "sgd" ? recipe.sgd_lr : recipe.adam_lr, recipe.warmup, recipe.batch,
                     fmt::join(sizes, ", "));
}

}  // namespace

std::string presets_text() {
  std::string text;
  for (const ModelKind& kind : models::model_kinds()) {
    if (kind.presets.empty()) continue;
    text += fmt::format(
        "--model {} --preset NAME, with bytes of values, gradients and the optimizer's state on each rank,\n"
        "whose state several ranks share (--zero 1), and the recipe:\n\n"
        "  {:<10}{:>12}{:>12}{:>12}{:>12}{:>10}{:>9}{:>7}\n",
        kind.name, "", "parameters", "1 rank", "2 ranks", "8 ranks", "lr", "warm-up", "batch");
    for (const models::Preset& preset : kind.presets) text += preset_text(kind, preset);
  }
  return text;
}

}  // namespace kolo::train
