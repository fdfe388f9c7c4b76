#include "runtime/types/rank_counts.h"

#include <fmt/format.h>

#include <charconv>
#include <cstdint>
#include <numeric>
#include <string>

#include <kolo/error.h>

namespace kolo {

std::vector<int> parts_of_ranks(std::string_view setting, std::string_view where, std::string_view text, int ranks) {
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{} is '{}' ({}); give the number of ranks {}, such as 2,2", setting, text, why, where));
  };
  std::vector<int> counts;
  for (const char* at = text.data(); at != text.data() + text.size();) {
    int count = 0;
    const auto [end, error] = std::from_chars(at, text.data() + text.size(), count);
    if (error != std::errc() || count < 1) refuse("not a list of positive numbers");
    counts.push_back(count);
    at = end;
    const bool last = at == text.data() + text.size();
    if (!last && (*at++ != ',' || at == text.data() + text.size())) refuse("not a list of positive numbers");
  }
  const auto total = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  if (total != ranks) refuse(fmt::format("it adds up to {} ranks, there are {}", total, ranks));
  std::vector<int> part_of;
  for (std::size_t i = 0; i < counts.size(); ++i)
    part_of.insert(part_of.end(), static_cast<std::size_t>(counts[i]), static_cast<int>(i));
  return part_of;
}

}  // namespace kolo
