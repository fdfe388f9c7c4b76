#include "apps/train/flags.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>
#include <cmath>
#include <limits>

#include "models/registry.h"

namespace kolo::train {
namespace {

[[noreturn]] void refuse(const Given& given, std::string_view accepted) {
  throw UsageError(fmt::format("{} is '{}'; it takes {}", given.where, given.value, accepted));
}

/// Nothing unless all of `text` is a number that fits.
template <class Number>
std::optional<Number> number_in(std::string_view text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

constexpr std::int64_t most = 1'000'000'000'000;  // keeps products of two counts that belong together from overflowing

std::int64_t count_of(const Given& given, std::int64_t least, std::int64_t largest = most) {
  const auto value = number_in<std::int64_t>(given.value);
  if (!value || *value < least || *value > largest)
    refuse(given, fmt::format("a whole number from {} to {}", least, largest));
  return *value;
}

double positive_of(const Given& given) {
  const auto value = number_in<double>(given.value);
  if (!value || !std::isfinite(*value) || *value <= 0) refuse(given, "a number above 0, such as 0.1 or 1e-3");
  return *value;
}

double momentum_of(const Given& given) {
  const auto value = number_in<double>(given.value);
  if (!value || !(*value >= 0 && *value < 1)) refuse(given, "a number from 0 to below 1; 0.9 is usual");
  return *value;
}

std::uint64_t seed_of(const Given& given) {
  const auto value = number_in<std::uint64_t>(given.value);
  if (!value) refuse(given, fmt::format("a whole number from 0 to {}", std::numeric_limits<std::uint64_t>::max()));
  return *value;
}

std::string text_of(const Given& given, std::string_view accepted) {
  if (given.value.empty()) refuse(given, accepted);
  return given.value;
}

std::vector<std::int64_t> sizes_of(const Given& given) {
  constexpr std::string_view accepted = "the units of each layer, such as 784,1024,1024,10";
  std::vector<std::int64_t> sizes;
  std::string_view rest = given.value;
  for (bool more = true; more;) {
    const auto comma = rest.find(',');
    const auto size = number_in<std::int64_t>(rest.substr(0, comma));
    if (!size || *size < 1) refuse(given, accepted);
    sizes.push_back(*size);
    more = comma != rest.npos;
    if (more) rest.remove_prefix(comma + 1);
  }
  if (sizes.size() < 2) refuse(given, accepted);
  return sizes;
}

/// "default: 12 for mlp"
template <class Value>
std::string default_of(Value models::TrainingDefaults::*field) {
  std::vector<std::string> parts;
  for (const std::string& model : models::known_models()) {
    parts.push_back(fmt::format("{} for {}", models::training_defaults(model).*field, model));
  }
  return fmt::format("default: {}", fmt::join(parts, ", "));
}

std::vector<Flag> model_flags() {
  return {
      {"Model", "model", "NAME",
       fmt::format("what to train: {} (default: mlp)", fmt::join(models::known_models(), ", ")),
       [](Options& o, const Given& given) { o.model = text_of(given, "a model's name"); }},
      {"Model", "sizes", "N,N,...",
       "units of an mlp's layers, inputs first (default: 784,1024,1024,10, or those of --init)",
       [](Options& o, const Given& given) { o.sizes = sizes_of(given); }},
      {"Model", "init", "FILE.safetensors", "parameters to start from; sets the sizes (default: random ones)",
       [](Options& o, const Given& given) { o.init = text_of(given, "a safetensors file"); }},
  };
}

std::vector<Flag> data_flags() {
  return {
      {"Data", "data", "DIR",
       "folder with MNIST's IDX files, gzipped or not: trains on train-*, holds out t10k-*; without train-*, trains on "
       "the "
       "first four fifths of t10k-* and holds out the rest (default: digits that the program renders)",
       [](Options& o, const Given& given) { o.data = text_of(given, "a folder"); }},
      {"Data", "order", "ORDER",
       "shuffled: anew in each epoch; sequential: as in the file, step t taking the next batch x ranks examples "
       "(default: shuffled)",
       [](Options& o, const Given& given) { o.order = models::order_of(given.value); }},
  };
}

std::vector<Flag> training_flags() {
  using Defaults = models::TrainingDefaults;
  return {
      {"Training", "epochs", "N",
       fmt::format("passes over the data ({}; no limit if --steps is given)", default_of(&Defaults::epochs)),
       [](Options& o, const Given& given) { o.epochs = count_of(given, 0, 1'000'000); }},
      {"Training", "steps", "N", "updates of the parameters in all; with --epochs too, what comes first ends the run",
       [](Options& o, const Given& given) { o.steps = count_of(given, 0); }},
      {"Training", "batch", "N", fmt::format("examples per rank and step ({})", default_of(&Defaults::batch)),
       [](Options& o, const Given& given) { o.batch = count_of(given, 1, 1'000'000'000); }},
      {"Training", "optimizer", "NAME", "sgd (default: sgd)",
       [](Options& o, const Given& given) { o.optimizer = text_of(given, "an optimizer's name"); }},
      {"Training", "lr", "X", fmt::format("learning rate ({})", default_of(&Defaults::lr)),
       [](Options& o, const Given& given) { o.lr = positive_of(given); }},
      {"Training", "momentum", "X", fmt::format("of sgd ({})", default_of(&Defaults::momentum)),
       [](Options& o, const Given& given) { o.momentum = momentum_of(given); }},
      {"Training", "seed", "N",
       "of the first parameters and of the order; the same seed gives the same bits (default: 1)",
       [](Options& o, const Given& given) { o.seed = seed_of(given); }},
  };
}

std::vector<Flag> output_flags() {
  return {
      {"Output", "save", "FILE.safetensors", "where the trained parameters go (f32)",
       [](Options& o, const Given& given) { o.save = text_of(given, "a file to write"); }},
      {"Output", "log", "FILE.jsonl", "one JSON object per step and per evaluation",
       [](Options& o, const Given& given) { o.log = text_of(given, "a file to write"); }},
      {"Output", "eval-every", "STEPS",
       "how often to measure on the held-out data (default: after each epoch; always at the end)",
       [](Options& o, const Given& given) { o.eval_every = count_of(given, 1); }},
  };
}

std::vector<Flag> all_flags() {
  std::vector<Flag> all;
  for (auto section : {model_flags(), data_flags(), training_flags(), output_flags()}) {
    for (Flag& flag : section) all.push_back(std::move(flag));
  }
  return all;
}

}  // namespace

std::span<const Flag> flags() {
  static const std::vector<Flag> table = all_flags();
  return table;
}

}  // namespace kolo::train
