#include "apps/cli/flag_values.h"
#include "apps/train/options/recipe.h"
#include "models/optim/optimizer.h"
#include "models/registry.h"
#include "models/util/words.h"

namespace kolo::train {
namespace {

/// "default: 12 for cnn, 1 for llama, 12 for mlp"
template <class Value>
std::string default_of(Value Recipe::*field) {
  std::vector<std::string> parts;
  for (const std::string& model : models::known_models()) {
    parts.push_back(fmt::format("{} for {}", shown(recipe_of(model).*field), model));
  }
  return fmt::format("default: {}", fmt::join(parts, ", "));
}

std::string default_lr() {
  std::vector<std::string> parts;
  for (const std::string& model : models::known_models()) {
    const Recipe recipe = recipe_of(model);
    parts.push_back(fmt::format("{} for {}", recipe.optimizer == "sgd" ? recipe.sgd_lr : recipe.adam_lr, model));
  }
  return fmt::format("default: {}; with another optimizer another", fmt::join(parts, ", "));
}

}  // namespace

std::vector<Flag> training_flags() {
  return {
      count_flag("epochs",
                 fmt::format("passes over the data ({}; no limit if --steps is given)", default_of(&Recipe::epochs)),
                 &Options::epochs, 0, 1'000'000),
      count_flag("steps",
                 "updates of the parameters in all, resumed or not; with --epochs too, what comes first ends the run",
                 &Options::steps, 0),
      count_flag("batch", fmt::format("examples per rank and micro-batch ({})", default_of(&Recipe::batch)),
                 &Options::batch, 1, 1'000'000'000),
      count_flag("accumulate", "micro-batches per step; only the last communicates (default: 1)", &Options::accumulate,
                 1, 1'000'000),
      flag("wire", "TYPE",
           "what gradients travel as: f32, or bf16 or f16, divided before they are summed (default: f32)",
           &Options::wire, [](const Given& given) { return models::precision_of(given.value); }),
      flag("seed", "N",
           "of the first parameters, the order and what is drawn; the same seed gives the same bits (default: 1)",
           &Options::seed, seed_of),
  };
}

std::vector<Flag> optimizer_flags() {
  return {
      flag("optimizer", "NAME",
           fmt::format("{} ({})", fmt::join(models::known_optimizers(), ", "), default_of(&Recipe::optimizer)),
           &Options::optimizer,
           [](const Given& given) {
             const auto known = models::known_optimizers();
             const std::vector<std::string_view> words(known.begin(), known.end());
             (void)models::place_of_word(words, "optimizer", given.value);  // there is one of that name
             return given.value;
           }),
      flag("lr", "X", fmt::format("learning rate, at its highest ({})", default_lr()), &Options::lr, positive_of),
      switch_flag("scale-lr", "multiply learning rates by the number of ranks", &Options::scale_lr),
      flag("schedule", "CURVE",
           fmt::format("how the learning rate goes behind the warm-up: constant, linear or cosine ({})",
                       default_of(&Recipe::schedule)),
           &Options::schedule, [](const Given& given) { return models::curve_of(given.value); }),
      count_flag("warmup", fmt::format("steps in which it rises in a straight line ({})", default_of(&Recipe::warmup)),
                 &Options::warmup, 0),
      flag("min-lr", "X", "where linear and cosine end (default: a tenth of --lr)", &Options::min_lr, not_negative_of),
      flag("momentum", "X", "of sgd (default: 0.9)", &Options::momentum,
           [](const Given& given) { return share_of(given, "0.9"); }),
      flag("beta1", "X", "of adam and adamw: how much of the mean gradient a step keeps (default: 0.9)",
           &Options::beta1, [](const Given& given) { return share_of(given, "0.9"); }),
      flag("beta2", "X", fmt::format("and of its mean square ({})", default_of(&Recipe::beta2)), &Options::beta2,
           [](const Given& given) { return share_of(given, "0.999"); }),
      flag("eps", "X", "what adam and adamw add to the root of that (default: 1e-8)", &Options::eps, positive_of),
      flag("weight-decay", "X",
           fmt::format("of adam and adamw, on matrices and not on norms and biases ({}; 0 with adam)",
                       default_of(&Recipe::weight_decay)),
           &Options::weight_decay, not_negative_of),
      flag("clip", "NORM",
           fmt::format("scale gradients of a larger global norm down to it; 0: never ({}, and 1 for coloured images)",
                       default_of(&Recipe::clip)),
           &Options::clip, not_negative_of),
  };
}

}  // namespace kolo::train
