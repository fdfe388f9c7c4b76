#pragma once

#include <functional>
#include <string_view>

#include "apps/train/options/options.h"

namespace kolo::train {

/// Refuses flags that say nothing to this model or optimizer, and that contradict each other.
///
/// said    whether somebody gave the flag of that name
/// config  the file of --config; empty: none
/// Errors: UsageError.
void check_conflicts(const Options& options, const std::function<bool(std::string_view)>& said,
                     const std::string& config);

}  // namespace kolo::train
