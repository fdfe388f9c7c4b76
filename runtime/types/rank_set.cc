#include "runtime/types/rank_set.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace kolo {
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

std::vector<RankSet::Range> RankSet::ranges() const {
  std::vector<Range> result;
  for (int rank : ranks_) {
    if (!result.empty() && result.back().last + 1 == rank) {
      result.back().last = rank;
    } else {
      result.push_back({rank, rank});
    }
  }
  return result;
}

std::string to_string(const RankSet& ranks) {
  if (ranks.empty()) return "no rank";
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  const char* separator = "";
  for (const auto [first, last] : ranks.ranges()) {
    if (last == first) {
      text += fmt::format("{}{}", separator, first);
    } else {
      text += fmt::format("{}{}{}{}", separator, first, last == first + 1 ? ", " : "-", last);
    }
    separator = ", ";
  }
  return text;
}

}  // namespace kolo
