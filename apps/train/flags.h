#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "apps/train/options.h"

namespace kolo::train {

/// A value as somebody gave it.
struct Given {
  std::string where;  ///< for messages: "--batch", or "batch in run.conf"
  std::string value;
};

/// One row of the table that parser, configuration file and help text come from.
struct Flag {
  std::string_view section;  ///< of the help text
  std::string_view name;     ///< without dashes
  std::string_view value;    ///< what stands for the value in the help text: "N", "FILE"
  std::string doc;
  std::function<void(Options&, const Given&)> set;  ///< Errors: UsageError, models::ModelError
};

/// All flags that take a value and may stand in a configuration file, by section, in the order of the help text.
std::span<const Flag> flags();

}  // namespace kolo::train
