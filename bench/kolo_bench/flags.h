#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "bench/kolo_bench/options.h"

namespace kolo::bench {

/// A value as somebody gave it.
struct Given {
  std::string flag;  ///< "-b"
  std::string value;
};

/// One row of the table that parser and help text come from.
struct Flag {
  std::string_view section;  ///< of the help text
  std::string_view name;     ///< "minbytes,b": the long name and the letter, if it has one
  std::string_view value;    ///< what stands for the value in the help text: "BYTES"; empty if it takes none
  std::string doc;
  std::function<void(Options&, const Given&)> set;  ///< Errors: UsageError
};

/// All flags, by section, in the order of the help text.
std::span<const Flag> flags();

}  // namespace kolo::bench
