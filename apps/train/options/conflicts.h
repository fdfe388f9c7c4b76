#pragma once

#include <functional>
#include <string_view>

#include "apps/train/options/options.h"

namespace kolo::train {

/// Refuses flags that this model or optimizer does not have, and flags that contradict each other.
///
/// explicitly_set  whether the flag of that name was given
/// config          the file of --config; empty: none
/// Errors: UsageError.
void check_conflicts(const Options& options, const std::function<bool(std::string_view)>& explicitly_set,
                     const std::string& config);

}  // namespace kolo::train
