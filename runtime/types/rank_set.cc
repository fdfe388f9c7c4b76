#include "runtime/types/rank_set.h"

#include <fmt/format.h>

#include <algorithm>

namespace kolo {
namespace {

constexpr std::size_t most_ranges_shown = 24;

}  // namespace

RankSet::RankSet(std::initializer_list<int> ranks) {
  for (int rank : ranks) add(rank);
}

RankSet RankSet::range(int first, int end) {
  RankSet result;
  if (first < end) result.ranges_.push_back({first, end - 1});
  return result;
}

/// Swallows the ranges that it touches.
void RankSet::add(Range range) {
  const auto begin =
      std::ranges::lower_bound(ranges_, range.first, {}, [](const Range& other) { return other.last + 1; });
  auto end = begin;
  for (; end != ranges_.end() && end->first <= range.last + 1; ++end) {
    range = {std::min(range.first, end->first), std::max(range.last, end->last)};
  }
  if (begin == end) {
    ranges_.insert(begin, range);
  } else {
    *begin = range;
    ranges_.erase(begin + 1, end);
  }
}

void RankSet::remove(Range range) {
  const auto begin = std::ranges::lower_bound(ranges_, range.first, {}, &Range::last);
  auto end = begin;
  std::vector<Range> rest;
  for (; end != ranges_.end() && end->first <= range.last; ++end) {
    if (end->first < range.first) rest.push_back({end->first, range.first - 1});
    if (end->last > range.last) rest.push_back({range.last + 1, end->last});
  }
  ranges_.insert(ranges_.erase(begin, end), rest.begin(), rest.end());
}

void RankSet::add(int rank) {
  add(Range{rank, rank});
}

void RankSet::add(const RankSet& other) {
  for (const Range& range : other.ranges_) add(range);
}

void RankSet::remove(const RankSet& other) {
  for (const Range& range : other.ranges_) remove(range);
}

bool RankSet::contains(int rank) const {
  const auto found = std::ranges::lower_bound(ranges_, rank, {}, &Range::last);
  return found != ranges_.end() && found->first <= rank;
}

bool RankSet::contains(const RankSet& other) const {
  return std::ranges::all_of(other.ranges_, [&](const Range& range) {
    const auto found = std::ranges::lower_bound(ranges_, range.first, {}, &Range::last);
    return found != ranges_.end() && found->first <= range.first && range.last <= found->last;
  });
}

int RankSet::size() const {
  int sum = 0;
  for (const auto [first, last] : ranges_) sum += last - first + 1;
  return sum;
}

std::vector<int> RankSet::ranks() const {
  std::vector<int> result;
  for (const auto [first, last] : ranges_) {
    for (int rank = first; rank <= last; ++rank) result.push_back(rank);
  }
  return result;
}

std::string to_string(const RankSet& ranks) {
  if (ranks.empty()) return "no rank";
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  RankSet rest = ranks;
  for (std::size_t i = 0; i < std::min(ranks.ranges().size(), most_ranges_shown); ++i) {
    const auto [first, last] = ranks.ranges()[i];
    if (i > 0) text += ", ";
    text += std::to_string(first);
    if (last > first) text += fmt::format("{}{}", last == first + 1 ? ", " : "-", last);
    rest.remove(RankSet::range(first, last + 1));
  }
  if (!rest.empty()) text += fmt::format(" and {} more", rest.size());
  return text;
}

}  // namespace kolo
