#pragma once

#include <compare>
#include <initializer_list>
#include <string>
#include <vector>

namespace kolo {

/// A set of session ranks, kept as ranges: what it costs does not depend on how many ranks follow each other.
class RankSet {
 public:
  struct Range {
    int first, last;
    friend auto operator<=>(const Range&, const Range&) = default;
  };

  RankSet() = default;
  RankSet(std::initializer_list<int> ranks);
  static RankSet range(int first, int end);

  void add(int rank);
  void add(const RankSet& other);
  void remove(const RankSet& other);
  bool contains(int rank) const;
  bool contains(const RankSet& other) const;
  bool empty() const { return ranges_.empty(); }
  int size() const;
  std::vector<int> ranks() const;                               ///< ascending
  const std::vector<Range>& ranges() const { return ranges_; }  ///< ascending, as few as possible

  /// The order of their lowest ranks, if they have none in common.
  friend auto operator<=>(const RankSet&, const RankSet&) = default;

 private:
  void add(Range range);
  void remove(Range range);

  std::vector<Range> ranges_;
};

/// "rank 3", "ranks 0-2, 5", "no rank"; of very many ranges the first ones, and how many ranks there are besides.
std::string to_string(const RankSet& ranks);

}  // namespace kolo
