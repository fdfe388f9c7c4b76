#pragma once

#include <initializer_list>
#include <string>
#include <vector>

namespace kolo {

/// A set of session ranks.
class RankSet {
 public:
  RankSet() = default;
  RankSet(std::initializer_list<int> ranks);
  static RankSet range(int first, int end);

  void add(int rank);
  void add(const RankSet& other);
  void remove(const RankSet& other);
  bool contains(int rank) const;
  bool empty() const { return ranks_.empty(); }
  int size() const { return static_cast<int>(ranks_.size()); }
  const std::vector<int>& ranks() const { return ranks_; }  ///< ascending

  struct Range {
    int first, last;
  };
  std::vector<Range> ranges() const;  ///< the same, ascending, as few ranges as possible

  friend bool operator==(const RankSet&, const RankSet&) = default;

 private:
  std::vector<int> ranks_;
};

/// "rank 3", "ranks 0-2, 5", "no rank".
std::string to_string(const RankSet& ranks);

}  // namespace kolo
