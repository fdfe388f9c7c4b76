#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "apps/train/options/options.h"

namespace kolo::train {

/// A value as somebody gave it.
struct Given {
  std::string where;  ///< for messages: "--batch", or "batch in run.conf"
  std::string value;
};

/// One row of the table that parser, configuration file, help text and the comparison of ranks come from.
struct Flag {
  std::string_view section;  ///< of the help text
  std::string_view name;     ///< without dashes
  std::string_view value;    ///< what stands for the value in the help text: "N", "FILE"; empty: it takes none
  std::string doc;
  std::function<void(Options&, const Given&)> set;      ///< Errors: UsageError, models::ModelError
  std::function<std::string(const Options&)> agreed{};  ///< what must be equal on all ranks; empty: each has its own
};

/// All flags that may stand in a configuration file, by section, in the order of the help text.
std::span<const Flag> flags();

/// The sections, in the order of the help text.
std::vector<std::string_view> flag_sections();

// The rows of each section.
std::vector<Flag> model_flags();
std::vector<Flag> data_flags();
std::vector<Flag> training_flags();
std::vector<Flag> optimizer_flags();
std::vector<Flag> output_flags();
std::vector<Flag> checkpoint_flags();

}  // namespace kolo::train
