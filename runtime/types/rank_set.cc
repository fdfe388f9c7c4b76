#include "runtime/types/rank_set.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <iterator>

namespace kolo {
namespace {

struct Range {
  int first, last;
};

std::vector<Range> ranges(const std::vector<int>& ranks) {
  std::vector<Range> result;
  for (int rank : ranks) {
    if (!result.empty() && result.back().last + 1 == rank) {
      result.back().last = rank;
    } else {
      result.push_back({rank, rank});
    }
  }
  return result;
}

constexpr int max_ranks = 1 << 22;  // a decoded set is never larger, whatever a message says

}  // namespace

RankSet::RankSet(std::initializer_list<int> ranks) {
  for (int rank : ranks) add(rank);
}

RankSet RankSet::range(int first, int end) {
  RankSet result;
  for (int rank = first; rank < end; ++rank) result.ranks_.push_back(rank);
  return result;
}

void RankSet::add(int rank) {
  const auto place = std::lower_bound(ranks_.begin(), ranks_.end(), rank);
  if (place == ranks_.end() || *place != rank) ranks_.insert(place, rank);
}

void RankSet::add(const RankSet& other) {
  std::vector<int> merged;
  std::set_union(ranks_.begin(), ranks_.end(), other.ranks_.begin(), other.ranks_.end(), std::back_inserter(merged));
  ranks_ = std::move(merged);
}

void RankSet::remove(const RankSet& other) {
  std::erase_if(ranks_, [&](int rank) { return other.contains(rank); });
}

bool RankSet::contains(int rank) const {
  return std::binary_search(ranks_.begin(), ranks_.end(), rank);
}

std::string to_string(const RankSet& ranks) {
  if (ranks.empty()) return "no rank";
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  const char* separator = "";
  for (const auto [first, last] : ranges(ranks.ranks())) {
    if (last == first) {
      text += fmt::format("{}{}", separator, first);
    } else {
      text += fmt::format("{}{}{}{}", separator, first, last == first + 1 ? ", " : "-", last);
    }
    separator = ", ";
  }
  return text;
}

void encode(Writer& writer, const RankSet& ranks) {
  const auto list = ranges(ranks.ranks());
  writer.put(static_cast<std::uint32_t>(list.size()));
  for (const auto [first, last] : list) {
    writer.put(static_cast<std::int32_t>(first));
    writer.put(static_cast<std::int32_t>(last));
  }
}

RankSet decode_rank_set(Reader& reader) {
  RankSet result;
  int total = 0;
  for (auto count = reader.get_length(8); count > 0; --count) {
    const auto first = reader.get<std::int32_t>();
    const auto last = reader.get<std::int32_t>();
    if (first < 0 || last < first || last >= max_ranks || (total += last - first + 1) > max_ranks) {
      throw Error(ErrorCode::backend, "malformed control message (bad range of ranks)");
    }
    result.add(RankSet::range(first, last + 1));
  }
  return result;
}

}  // namespace kolo
