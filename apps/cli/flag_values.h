#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/cli/flags.h"
#include "models/compute/precision.h"
#include "models/data/sampler.h"
#include "models/data/token_stream.h"
#include "models/optim/schedule.h"

namespace kolo::train {

/// "--lr is 'abc'; it takes ACCEPTED"
[[noreturn]] void refuse(const Given& given, std::string_view accepted);

inline constexpr std::int64_t largest_count = 1'000'000'000'000;  // keeps products of two counts from overflowing

// What a value means. Errors: UsageError that says what the flag takes.
std::int64_t count_of(const Given& given, std::int64_t least, std::int64_t largest = largest_count);
double positive_of(const Given& given);
double not_negative_of(const Given& given);
/// From 0 to below 1.
double share_of(const Given& given, std::string_view usual);
std::uint64_t seed_of(const Given& given);
std::string text_of(const Given& given, std::string_view accepted);
std::vector<std::int64_t> sizes_of(const Given& given);
/// Of a flag without a value: "yes" on the command line; yes or no in a file.
bool switch_of(const Given& given);

// How a value is written, so that ranks can be compared.
inline std::string shown(const std::string& value) {
  return value.empty() ? "none" : value;
}
inline std::string shown(bool value) {
  return value ? "yes" : "no";
}
inline std::string shown(double value) {
  return fmt::format("{}", value);
}
inline std::string shown(std::int64_t value) {
  return fmt::format("{}", value);
}
inline std::string shown(std::uint64_t value) {
  return fmt::format("{}", value);
}
inline std::string shown(const std::vector<std::int64_t>& sizes) {
  return sizes.empty() ? "the default" : fmt::format("{}", fmt::join(sizes, ","));
}
inline std::string shown(models::Order order) {
  return order == models::Order::shuffled ? "shuffled" : "sequential";
}
inline std::string shown(models::Curve curve) {
  return std::string(models::to_string(curve));
}
inline std::string shown(models::TokenType type) {
  return std::string(models::to_string(type));
}
inline std::string shown(models::Precision precision) {
  return std::string(models::to_string(precision));
}
template <class Value>
std::string shown(const std::optional<Value>& value) {
  return value ? shown(*value) : "none";
}

/// A flag that puts what `parse` makes of its value into a field, and whose field must be equal on all ranks.
template <class Field, class Parse>
Flag flag(std::string_view name, std::string_view value, std::string doc, Field Options::*field, Parse parse) {
  return {.name = name,
          .value = value,
          .doc = std::move(doc),
          .set = [=](Options& options, const Given& given) { options.*field = parse(given); },
          .agreed = [=](const Options& options) { return shown(options.*field); }};
}

/// A flag without a value.
inline Flag switch_flag(std::string_view name, std::string doc, bool Options::*field) {
  return flag(name, "", std::move(doc), field, switch_of);
}

/// A flag that takes a whole number.
template <class Field>
Flag count_flag(std::string_view name, std::string doc, Field Options::*field, std::int64_t least,
                std::int64_t largest = largest_count) {
  return flag(name, "N", std::move(doc), field, [=](const Given& given) { return count_of(given, least, largest); });
}

/// A flag that names a file or folder, each rank its own.
inline Flag path_flag(std::string_view name, std::string_view value, std::string doc, std::string Options::*field,
                      std::string_view accepted) {
  Flag made = flag(name, value, std::move(doc), field, [=](const Given& given) { return text_of(given, accepted); });
  made.agreed = nullptr;
  return made;
}

}  // namespace kolo::train
