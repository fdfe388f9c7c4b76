#pragma once

#include <initializer_list>
#include <string>
#include <vector>

#include "runtime/control/wire.h"

namespace kolo {

/// A set of session ranks, for announcements and messages.
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
  const std::vector<int>& ranks() const { return ranks_; }

  friend bool operator==(const RankSet&, const RankSet&) = default;

 private:
  std::vector<int> ranks_;  // ascending
};

/// "rank 3", "ranks 0-2, 5", "no rank".
std::string to_string(const RankSet& ranks);

/// On the wire a set is a list of ranges, so that it does not grow with the number of ranks in the usual cases.
void encode(Writer& writer, const RankSet& ranks);
RankSet decode_rank_set(Reader& reader);

}  // namespace kolo
