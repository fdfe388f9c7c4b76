#include "apps/cli/flag_values.h"

#include <charconv>
#include <cmath>
#include <limits>

namespace kolo::train {
namespace {

/// Nothing unless all of `text` is a number that fits.
template <class Number>
std::optional<Number> number_in(std::string_view text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

}  // namespace

void refuse(const Given& given, std::string_view accepted) {
  throw UsageError(fmt::format("{} is '{}'; it takes {}", given.where, given.value, accepted));
}

std::int64_t count_of(const Given& given, std::int64_t least, std::int64_t largest) {
  const auto value = number_in<std::int64_t>(given.value);
  if (!value || *value < least || *value > largest)
    refuse(given, fmt::format("a whole number from {} to {}", least, largest));
  return *value;
}

double positive_of(const Given& given) {
  const auto value = number_in<double>(given.value);
  if (!value || !std::isfinite(*value) || *value <= 0) refuse(given, "a number above 0, such as 0.1 or 1e-3");
  return *value;
}

double not_negative_of(const Given& given) {
  const auto value = number_in<double>(given.value);
  if (!value || !std::isfinite(*value) || *value < 0) refuse(given, "a number from 0 on, such as 0.1 or 1e-3");
  return *value;
}

double share_of(const Given& given, std::string_view usual) {
  const auto value = number_in<double>(given.value);
  if (!value || !(*value >= 0 && *value < 1))
    refuse(given, fmt::format("a number from 0 to below 1; {} is usual", usual));
  return *value;
}

std::uint64_t seed_of(const Given& given) {
  const auto value = number_in<std::uint64_t>(given.value);
  if (!value) refuse(given, fmt::format("a whole number from 0 to {}", std::numeric_limits<std::uint64_t>::max()));
  return *value;
}

std::string text_of(const Given& given, std::string_view accepted) {
  if (given.value.empty()) refuse(given, accepted);
  return given.value;
}

std::vector<std::int64_t> sizes_of(const Given& given) {
  constexpr std::string_view accepted = "the units of each layer, such as 784,1024,1024,10";
  std::vector<std::int64_t> sizes;
  std::string_view rest = given.value;
  for (bool more = true; more;) {
    const auto comma = rest.find(',');
    const auto size = number_in<std::int64_t>(rest.substr(0, comma));
    if (!size || *size < 1) refuse(given, accepted);
    sizes.push_back(*size);
    more = comma != rest.npos;
    if (more) rest.remove_prefix(comma + 1);
  }
  if (sizes.size() < 2) refuse(given, accepted);
  return sizes;
}

bool switch_of(const Given& given) {
  if (given.value == "yes" || given.value == "true") return true;
  if (given.value != "no" && given.value != "false") refuse(given, "yes or no");
  return false;
}

}  // namespace kolo::train
