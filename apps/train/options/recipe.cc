#include "apps/train/options/recipe.h"

#include "models/registry.h"

namespace kolo::train {

Recipe recipe_of(std::string_view model) {
  models::check_known(model);
  if (model == "llama") {
    return {.epochs = 1,
            .batch = 8,
            .optimizer = "adamw",
            .adam_lr = 2e-3,
            .beta2 = 0.95,
            .weight_decay = 0.1,
            .schedule = models::Curve::cosine,
            .warmup = 60,
            .clip = 1};
  }
  return {};
}

void fill_in(Options& options, const std::function<bool(std::string_view)>& said) {
  const Recipe recipe = recipe_of(options.model);
  const auto put = [&](std::string_view flag, auto& field, const auto& value) {
    if (!said(flag)) field = value;
  };
  if (!options.epochs && !options.steps) options.epochs = recipe.epochs;
  options.batch_given = said("batch");
  put("batch", options.batch, recipe.batch);
  put("optimizer", options.optimizer, recipe.optimizer);
  put("lr", options.lr, options.optimizer == "sgd" ? recipe.sgd_lr : recipe.adam_lr);
  put("beta2", options.beta2, recipe.beta2);
  put("weight-decay", options.weight_decay, options.optimizer == "adamw" ? recipe.weight_decay : 0.0);
  put("schedule", options.schedule, recipe.schedule);
  put("warmup", options.warmup, recipe.warmup);
  put("clip", options.clip, recipe.clip);
  options.clip_given = said("clip");
}

}  // namespace kolo::train
