#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "apps/cli/flags.h"
#include "apps/train/options/options.h"

namespace kolo::train {

inline constexpr std::string_view model_section = "Model", data_section = "Data", checkpoint_section = "Checkpoints",
                                  output_section = "Output";

/// All flags that may stand in a configuration file, by section, in the order of the help text.
std::span<const cli::Flag<Options>> flags();

/// Checks for flags that the model or optimizer does not have, and flags that contradict each other.
///
/// explicitly_set  whether the flag of that name was given
/// config          the file of --config; empty: none
/// Errors: UsageError.
void check_conflicts(const Options& options, const std::function<bool(std::string_view)>& explicitly_set,
                     const std::string& config);

}  // namespace kolo::train
