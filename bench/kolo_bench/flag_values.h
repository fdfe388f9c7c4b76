#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "bench/kolo_bench/flags.h"

namespace kolo::bench {

/// Throws UsageError: "-b is 'x'; it takes ACCEPTED".
[[noreturn]] void refuse(const Given& given, std::string_view accepted);

/// What the values of flags mean. Errors: UsageError that names the flag and what is accepted.
std::int64_t bytes_of(const Given& given);
std::int64_t count_of(const Given& given, std::int64_t least, std::int64_t most);
double number_of(const Given& given, std::string_view accepted);
double share_of(const Given& given);
std::string file_of(const Given& given);
std::vector<ReduceOp> ops_of(const Given& given);
std::vector<DType> dtypes_of(const Given& given);

/// One of some words.
template <class Value>
Value choice_of(const Given& given, std::initializer_list<std::pair<std::string_view, Value>> choices) {
  std::string accepted;
  for (const auto& [word, value] : choices) {
    if (given.value == word) return value;
    accepted += (accepted.empty() ? "" : ", ") + std::string(word);
  }
  refuse(given, "one of " + accepted);
}

}  // namespace kolo::bench
