#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "apps/cli/flags.h"
#include "apps/train/options/options.h"

namespace kolo::train {

/// All flags that may stand in a configuration file, by section, in the order of the help text.
std::span<const cli::Flag<Options>> flags();

/// Default settings of a model, used where no flag sets another value.
struct Recipe {
  std::int64_t epochs = 12;
  std::int64_t batch = 64;  ///< examples per rank and micro-batch: images, or sequences
  std::string optimizer = "sgd";
  double sgd_lr = 0.1;
  double adam_lr = 1e-3;  ///< of adam and adamw
  double beta2 = 0.999;
  double weight_decay = 0.01;  ///< of adamw
  models::Curve schedule = models::Curve::constant;
  std::int64_t warmup = 0;
  double clip = 0;  ///< none; of coloured images 1, since their gradients vary more
};

/// Errors: models::ModelError for an unknown model.
Recipe recipe_of(std::string_view model);

/// Checks for flags that the model or optimizer does not have, and flags that contradict each other.
///
/// explicitly_set  whether the flag of that name was given
/// config          the file of --config; empty: none
/// Errors: UsageError.
void check_conflicts(const Options& options, const std::function<bool(std::string_view)>& explicitly_set,
                     const std::string& config);

}  // namespace kolo::train
